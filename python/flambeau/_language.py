"""Language models: text, conversations, vectors of texts."""

from __future__ import annotations

import json
import os
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, Optional, TypedDict, Union, overload

from . import _native
from ._flags import engine_flags, flags

if TYPE_CHECKING:
    from typing_extensions import Unpack

#: Messages with ``role`` and ``content``, or the text of one user.
Messages = Union[str, Sequence[Mapping[str, Any]]]
#: Descriptions of tools as JSON schemas, in OpenAI's form.
Tools = Optional[Sequence[Mapping[str, Any]]]


class Options(TypedDict, total=False):
    """How text is generated."""

    #: 256 without it; the model's context may end earlier.
    max_new_tokens: int
    #: 0, the default, takes the likeliest token each time.
    temperature: float
    #: Sample from so many of the likeliest tokens; 0 means all.
    top_k: int
    #: Sample from the likeliest tokens whose probabilities sum up to this.
    top_p: float
    #: Drop tokens less likely than this times the likeliest one.
    min_p: float
    #: Penalty on tokens that occurred already; 1 is none.
    repetition_penalty: float
    #: Fixes what is drawn.
    seed: int | None
    #: Texts that end the answer and are not part of it.
    stop: str | Sequence[str]
    #: Whether the model's end of text is treated as any other token.
    ignore_eos: bool
    #: A JSON schema that the answer will follow.
    schema: Mapping[str, Any] | None


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
}


class Text(str):
    """Text of a model, with what is known of how it came about."""

    #: ``stop``: the model ended it; ``length``: there was no room for more; ``cancelled``: Ctrl-C or ``cancel()``.
    finish_reason: str
    #: Tokens of the text.
    ids: list[int]
    #: Tokens of the prompt that had to be computed.
    prompt_tokens: int
    #: Tokens of the text, one that ended it included.
    generated_tokens: int
    prompt_tokens_per_second: float | None
    generated_tokens_per_second: float | None


class TextStream(Iterator[str], AsyncIterator[str]):
    """Text as it is written, piece by piece: for ``for`` and for ``async for``.

    The model computes while the next piece is waited for. ``cancel()`` ends the text where it is, as does dropping the stream.
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
        # Imported here, since it would double the time of `import flambeau`.
        import asyncio

        piece = await asyncio.to_thread(next, self, None)
        if piece is None:
            raise StopAsyncIteration
        return piece

    def cancel(self) -> None:
        """Ends the text where it is."""
        self._answer.cancel()

    def text(self) -> Text:
        """All text: what was given out already, and what is still to come."""
        self._pieces.append(self._answer.rest())
        text = Text("".join(self._pieces))
        for name, value in (self._answer.summary() or {}).items():
            setattr(text, name, value)
        return text

    def __repr__(self) -> str:
        state = self._answer.summary()
        return f"<TextStream, {'in progress' if state is None else state['finish_reason']}>"


class LLM:
    """A language model, or a text encoder for :meth:`embed`.

    ``model`` is a program (``.pte``), a folder or GGUF file of weights, or a name such as
    ``HuggingFaceTB/SmolLM2-135M-Instruct`` on the Hugging Face hub. What is no program is exported once, into the user's cache;
    ``dtype``, ``max_seq_len``, ``kv_cache``, ``qlinear``, ``qembedding``, ``group_size`` and ``recipe`` say how, as the flags of
    ``flambeau generate`` do. Weights become 4-bit codes unless ``qlinear="none"``.

    ``engine`` is ``"cpu"`` or ``"mlx"``; ``threads`` bounds the former.
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
                "cache_dir": cache_dir,
            }
        )
        self._encoder: _native.Encoder | None = None
        self._model: _native.LanguageModel | None = None
        try:
            self._model = _native.LanguageModel(self._flags, self._engine)
        except _native.LoadError as error:
            if "is a text encoder" not in str(error):
                raise
            self._encoder = _native.Encoder(self._flags, self._engine)

    @overload
    def generate(self, prompt: str | Sequence[int], *, stream: Literal[False] = ..., **options: Unpack[Options]) -> Text: ...
    @overload
    def generate(self, prompt: str | Sequence[int], *, stream: Literal[True], **options: Unpack[Options]) -> TextStream: ...
    @overload
    def generate(self, prompt: str | Sequence[int], *, stream: bool, **options: Unpack[Options]) -> Text | TextStream: ...

    def generate(
        self, prompt: str | Sequence[int], *, stream: bool = False, **options: Unpack[Options]
    ) -> Text | TextStream:
        """Continues a prompt, a text or tokens, as it is; :meth:`chat` applies the model's template.

        Options are those of :class:`Options`. With ``stream=True`` the text comes piece by piece.
        """
        model = self._language()
        ids = model.encode(prompt, True) if isinstance(prompt, str) else list(prompt)
        unknown = options.keys() - Options.__annotations__.keys()
        if unknown:
            raise TypeError(f"generate() has no option {sorted(unknown)[0]}; there are {', '.join(Options.__annotations__)}")
        wish: dict[str, Any] = {**_DEFAULTS, **options}
        wish["stop"] = [wish["stop"]] if isinstance(wish["stop"], str) else list(wish["stop"])
        wish["schema"] = None if wish["schema"] is None else json.dumps(wish["schema"])
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
        """Answers a conversation: messages with ``role`` and ``content``, or the text of one user.

        ``tools`` are described to the model as its template does; calls come as the model writes them. What the caches hold of an
        earlier conversation that begins alike is not computed again. Further options are those of :meth:`generate`.
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
        """The prompt of a conversation, with the beginning of the answer."""
        if isinstance(messages, str):
            messages = [{"role": "user", "content": messages}]
        described = None if tools is None else json.dumps(list(tools))
        variables = json.dumps({"enable_thinking": think})
        return self._language().render(json.dumps(list(messages)), described, variables)

    def tokenize(self, text: str, *, special: bool = True) -> list[int]:
        """Tokens of a text, with those that the model expects around it if ``special``."""
        return self._language().encode(text, special)

    def detokenize(self, ids: Sequence[int], *, skip_special: bool = True) -> str:
        """Text of tokens."""
        return self._language().decode(list(ids), skip_special)

    def embed(self, texts: str | Sequence[str], *, truncate: bool = False) -> list[list[float]]:
        """A vector for each text, from a text encoder. ``truncate`` leaves out the end of texts that are too long."""
        if self._encoder is None:
            raise _native.InputError(f"{self._name} is a language model; embed() needs a text encoder")
        return self._encoder.embed([texts] if isinstance(texts, str) else list(texts), truncate)

    def eval(self, text: str, *, window: int = 512, windows: int | None = None) -> dict[str, float]:
        """How well the model predicts a text: its perplexity over windows of so many tokens, as ``flambeau eval`` measures it."""
        return self._language().evaluate(text, window, windows)

    @property
    def context(self) -> int | None:
        """Most tokens of prompt and answer together, if the program says."""
        return self._language().context

    def _language(self) -> _native.LanguageModel:
        if self._model is None:
            raise _native.InputError(f"{self._name} is a text encoder; use embed()")
        return self._model

    def __repr__(self) -> str:
        kind = "text encoder" if self._model is None else f"context of {self.context} tokens"
        return f"<LLM {self._name}, {kind}, {' '.join(self._engine)}>"
