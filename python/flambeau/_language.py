"""Language models: text generation, conversations, text embeddings and reranking."""

from __future__ import annotations

import json
import os
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Optional, TypedDict, Union, overload

from . import _native
from ._flags import engine_flags, flags

if TYPE_CHECKING:
    from typing_extensions import Unpack

#: Messages with ``role`` and ``content``, or the text of a single user message.
Messages = Union[str, Sequence[Mapping[str, Any]]]
#: Adapters by name with their scales. A list applies its adapters with scale 1.
Adapters = Union[None, Mapping[str, float], Sequence[str]]
#: Descriptions of tools as JSON schemas, in OpenAI's form.
Tools = Optional[Sequence[Mapping[str, Any]]]


class Options(TypedDict, total=False):
    """Options of text generation."""

    #: Default 256; the model's context may end earlier.
    max_new_tokens: int
    #: 0, the default, always takes the likeliest token.
    temperature: float
    #: Sample from this many of the likeliest tokens; 0 means all.
    top_k: int
    #: Sample from the likeliest tokens, up to this total probability.
    top_p: float
    #: Drop tokens less likely than this fraction of the likeliest one.
    min_p: float
    #: Penalty on tokens that have occurred; 1 means none.
    repetition_penalty: float
    #: Seed of the sampling.
    seed: int | None
    #: Texts that end the answer; excluded from it.
    stop: str | Sequence[str]
    #: Whether to treat the model's end token like any other token.
    ignore_eos: bool
    #: A JSON schema that constrains the answer.
    schema: Mapping[str, Any] | None
    #: Adapters to apply; all others are left out. By default, all at their default scales.
    adapters: Adapters


_DEFAULTS: Options = {
    "max_new_tokens": 256,
    "temperature": 0.0,
    "top_k": 0,
    "top_p": 1.0,
    "min_p": 0.0,
    "repetition_penalty": 1.0,
    "seed": None,
    "stop": (),
    "ignore_eos": False,
    "schema": None,
    "adapters": None,
}


def _scales(adapters: Adapters) -> list[tuple[str, float]] | None:
    if adapters is None:
        return None
    if isinstance(adapters, str):
        raise TypeError("adapters are a list of names, or a mapping from names to scales")
    return list(adapters.items()) if isinstance(adapters, Mapping) else [(name, 1.0) for name in adapters]


class Ranked(NamedTuple):
    """A document with its relevance to a query."""

    #: Index among the documents.
    position: int
    #: From 0 to 1.
    relevance: float
    document: str


class Text(str):
    """Generated text with statistics of its generation."""

    #: ``stop``: the model ended the text; ``length``: a length limit was reached; ``cancelled``:
    #: Ctrl-C or ``cancel()``.
    finish_reason: str
    #: Token ids of the text.
    ids: list[int]
    #: Number of computed prompt tokens, without cached ones.
    prompt_tokens: int
    #: Number of generated tokens, including one that ended the text.
    generated_tokens: int
    prompt_tokens_per_second: float | None
    generated_tokens_per_second: float | None


class TextStream(Iterator[str], AsyncIterator[str]):
    """Streamed text, piece by piece, for ``for`` and ``async for``.

    The model only computes while a piece is awaited. ``cancel()``, or dropping the stream, ends the
    text early.
    """

    def __init__(self, answer: _native.Answer) -> None:
        self._answer = answer
        self._pieces: list[str] = []

    def __iter__(self) -> TextStream:
        return self

    def __next__(self) -> str:
        piece = next(self._answer)
        self._pieces.append(piece)
        return piece

    def __aiter__(self) -> TextStream:
        return self

    async def __anext__(self) -> str:
        # Imported here, because it would double the time of `import flambeau`.
        import asyncio

        piece = await asyncio.to_thread(next, self, None)
        if piece is None:
            raise StopAsyncIteration
        return piece

    def cancel(self) -> None:
        """Ends the text early."""
        self._answer.cancel()

    def text(self) -> Text:
        """Generates the rest; returns the whole text, including pieces already returned."""
        self._pieces.append(self._answer.rest())
        text = Text("".join(self._pieces))
        for name, value in (self._answer.summary() or {}).items():
            setattr(text, name, value)
        return text

    def __repr__(self) -> str:
        state = self._answer.summary()
        return f"<TextStream, {'in progress' if state is None else state['finish_reason']}>"


def _lora(adapters: Mapping[str, str | os.PathLike[str]] | Sequence[str | os.PathLike[str]]) -> list[str]:
    if isinstance(adapters, (str, os.PathLike)):
        raise TypeError("lora is a list of paths, or a mapping from names to paths")
    if isinstance(adapters, Mapping):
        return [f"{name}={os.fspath(path)}" for name, path in adapters.items()]
    return [os.fspath(path) for path in adapters]


class LLM:
    """A language model, a text encoder for :meth:`embed`, or a classifier for :meth:`rerank`.

    ``model`` is a program (``.pte``), a folder or GGUF file of weights, or a name such as
    ``HuggingFaceTB/SmolLM2-135M-Instruct`` on the Hugging Face hub. Weights are exported to a
    program once, into the user's cache. ``dtype``, ``max_seq_len``, ``kv_cache``, ``qlinear``,
    ``qembedding``, ``group_size`` and ``recipe`` configure the export like the flags of ``flambeau
    generate``. Weights are quantized to 4 bits unless ``qlinear="none"``.

    ``lora`` gives LoRA adapters of a checkpoint: a list of paths is merged into the weights. A
    mapping from names to paths keeps them apart, and :meth:`generate` chooses among them. A path
    may end with ``:SCALE``.

    ``engine`` is ``"cpu"`` or ``"mlx"``; ``threads`` limits the CPU engine.
    """

    def __init__(
        self,
        model: str | os.PathLike[str],
        *,
        engine: str = "cpu",
        threads: int | None = None,
        device: str | None = None,
        tokenizer: str | os.PathLike[str] | None = None,
        dtype: str | None = None,
        max_seq_len: int | None = None,
        kv_cache: str | None = None,
        qlinear: str | None = None,
        qembedding: str | None = None,
        group_size: int | None = None,
        recipe: str | os.PathLike[str] | None = None,
        lora: Mapping[str, str | os.PathLike[str]] | Sequence[str | os.PathLike[str]] = (),
        cache_dir: str | os.PathLike[str] | None = None,
    ) -> None:
        self._name = os.fspath(model)
        self._engine = engine_flags(engine, threads, device)
        self._flags = [self._name] + flags(
            {
                "threads": threads,
                "tokenizer": tokenizer,
                "dtype": dtype,
                "max_seq_len": max_seq_len,
                "kv_cache": kv_cache,
                "qlinear": qlinear,
                "qembedding": qembedding,
                "group_size": group_size,
                "recipe": recipe,
                "lora": _lora(lora),
                "cache_dir": cache_dir,
            }
        )
        self._encoder: _native.Encoder | None = None
        self._classifier: _native.Classifier | None = None
        self._model: _native.LanguageModel | None = None
        try:
            self._model = _native.LanguageModel(self._flags, self._engine)
        except _native.LoadError as error:
            if "is a text encoder" in str(error):
                self._encoder = _native.Encoder(self._flags, self._engine)
            elif "is a classifier of texts" in str(error):
                self._classifier = _native.Classifier(self._flags, self._engine)
            else:
                raise

    @overload
    def generate(self, prompt: str | Sequence[int], *, stream: Literal[False] = ..., **options: Unpack[Options]) -> Text: ...
    @overload
    def generate(self, prompt: str | Sequence[int], *, stream: Literal[True], **options: Unpack[Options]) -> TextStream: ...
    @overload
    def generate(self, prompt: str | Sequence[int], *, stream: bool, **options: Unpack[Options]) -> Text | TextStream: ...

    def generate(
        self, prompt: str | Sequence[int], *, stream: bool = False, **options: Unpack[Options]
    ) -> Text | TextStream:
        """Continues a prompt, given as text or tokens, without a template; :meth:`chat` applies the
        model's template.

        See :class:`Options` for the options. ``stream=True`` returns the text piece by piece.
        """
        model = self._language()
        ids = model.encode(prompt, True) if isinstance(prompt, str) else list(prompt)
        unknown = options.keys() - Options.__annotations__.keys()
        if unknown:
            raise TypeError(f"generate() has no option {sorted(unknown)[0]}; there are {', '.join(Options.__annotations__)}")
        wish: dict[str, Any] = {**_DEFAULTS, **options}
        wish["stop"] = [wish["stop"]] if isinstance(wish["stop"], str) else list(wish["stop"])
        wish["schema"] = None if wish["schema"] is None else json.dumps(wish["schema"])
        wish["adapters"] = _scales(wish["adapters"])
        answer = TextStream(model.begin(ids, wish))
        return answer if stream else answer.text()

    @overload
    def chat(
        self, messages: Messages, *, stream: Literal[False] = ..., tools: Tools = ..., think: bool = ..., **options: Unpack[Options]
    ) -> Text: ...
    @overload
    def chat(
        self, messages: Messages, *, stream: Literal[True], tools: Tools = ..., think: bool = ..., **options: Unpack[Options]
    ) -> TextStream: ...

    def chat(
        self,
        messages: Messages,
        *,
        stream: bool = False,
        tools: Tools = None,
        think: bool = False,
        **options: Unpack[Options],
    ) -> Text | TextStream:
        """Answers a conversation: messages with ``role`` and ``content``, or the text of a single
        user message.

        The model's template describes ``tools`` to the model; tool calls are returned as the model
        writes them. A cached prefix of an earlier conversation is not computed again. Further
        options are those of :meth:`generate`.
        """
        prompt = self.apply_chat_template(messages, tools=tools, think=think)
        return self.generate(self._language().encode(prompt, False), stream=stream, **options)

    def apply_chat_template(
        self,
        messages: Messages,
        *,
        tools: Tools = None,
        think: bool = False,
    ) -> str:
        """Renders a conversation as a prompt, including the start of the answer."""
        if isinstance(messages, str):
            messages = [{"role": "user", "content": messages}]
        described = None if tools is None else json.dumps(list(tools))
        variables = json.dumps({"enable_thinking": think})
        return self._language().render(json.dumps(list(messages)), described, variables)

    def tokenize(self, text: str, *, special: bool = True) -> list[int]:
        """Tokenizes a text; ``special`` adds the model's special tokens around it."""
        return self._language().encode(text, special)

    def detokenize(self, ids: Sequence[int], *, skip_special: bool = True) -> str:
        """Decodes tokens to text."""
        return self._language().decode(list(ids), skip_special)

    def embed(
        self,
        texts: str | Sequence[str],
        *,
        truncate: bool = False,
        prompt: str | None = None,
        prompt_name: str | None = None,
        dimensions: int | None = None,
    ) -> list[list[float]]:
        """Computes a vector for each text with a text encoder. ``truncate`` cuts overlong texts.

        ``prompt`` is a text before every text, and ``prompt_name`` chooses one of :attr:`prompts`.
        ``dimensions`` shortens vectors to their first elements and scales them to length 1.
        """
        if self._encoder is None:
            raise _native.InputError(f"{self._name} is {self._kind()}; embed() needs a text encoder")
        how = {"truncate": truncate, "prompt": prompt, "prompt_name": prompt_name, "dimensions": dimensions}
        return self._encoder.embed([texts] if isinstance(texts, str) else list(texts), flags(how))

    @property
    def prompts(self) -> dict[str, str]:
        """The prompts of a text encoder by name."""
        return {} if self._encoder is None else dict(self._encoder.prompts())

    def rerank(
        self, query: str, documents: Sequence[str], *, top_n: int | None = None, instruction: str | None = None
    ) -> list[Ranked]:
        """Sorts documents by their relevance to a query, the most relevant first.

        Classifiers of pairs of texts and language models such as Qwen3-Reranker can do so. The
        latter read an ``instruction``, and are loaded a second time at the first call. ``top_n``
        limits the number of results. The end of an overlong document is left out.
        """
        if self._encoder is not None:
            raise _native.InputError(f"{self._name} is a text encoder; use embed()")
        if self._classifier is None:
            self._classifier = _native.Classifier(self._flags, self._engine)
        documents = list(documents)
        found = self._classifier.relevance(query, documents, instruction)
        ranked = [Ranked(i, relevance, document) for i, (relevance, document) in enumerate(zip(found, documents))]
        return sorted(ranked, key=lambda one: -one.relevance)[:top_n]

    def eval(self, text: str, *, window: int = 512, windows: int | None = None, adapters: Adapters = None) -> dict[str, float]:
        """Measures the perplexity on a text over windows of ``window`` tokens, like ``flambeau
        eval``. ``adapters`` are chosen as in :meth:`generate`.
        """
        return self._language().evaluate(text, window, windows, _scales(adapters))

    @property
    def adapters(self) -> dict[str, float]:
        """Default scales of the LoRA adapters by name."""
        return dict(self._language().adapters())

    @property
    def context(self) -> int | None:
        """Maximum number of tokens of prompt and answer together, if the program states it."""
        return self._language().context

    def _language(self) -> _native.LanguageModel:
        if self._model is None:
            raise _native.InputError(f"{self._name} is {self._kind()}")
        return self._model

    def _kind(self) -> str:
        if self._model is not None:
            return "a language model"
        return "a classifier of texts; use rerank()" if self._encoder is None else "a text encoder; use embed()"

    def __repr__(self) -> str:
        kind = self._kind().split(";")[0] if self._model is None else f"context of {self.context} tokens"
        return f"<LLM {self._name}, {kind}, {' '.join(self._engine)}>"
