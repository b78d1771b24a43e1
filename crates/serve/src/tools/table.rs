//! The call formats. Each row describes a model family's prompts; `docs/serve.md` lists the models.

use super::format::{Arguments, BASE, Field, Format, Head, Ids, Middle, Pairs, Value};

/// All formats. If several parse a call equally well, the first one wins. The very first one serves
/// templates without support for tools.
pub(super) const FORMATS: &[Format] = &[
    Format {
        name: "hermes",
        open: &["<tool_call>\n"],
        close: "\n</tool_call>",
        between: "\n",
        taught_by: &["<tool_call>"],
        ..BASE
    },
    Format {
        name: "llama3",
        open: &["", "<|python_tag|>"],
        head: Head::Object(&[Field::Name("name"), Field::Arguments("parameters")]),
        between: "; ",
        is_whole: true,
        code: &["<|python_tag|>"],
        also: &[BUILTIN],
        ..BASE
    },
    Format {
        name: "qwen3-coder",
        open: &["<tool_call>\n<function=", "<function="],
        head: Head::Name(
            &[">\n"],
            Arguments::Pairs(Pairs { open: "<parameter=", middles: &PARAMETER, on_lines: true, inner: None }),
        ),
        close: "\n</function>\n</tool_call>",
        between: "\n",
        ends_thoughts: &["<tool_call>"],
        ..BASE
    },
    Format {
        name: "glm",
        open: &["<tool_call>"],
        head: Head::Name(&["\n"], ARG_KEYS),
        close: "\n</tool_call>",
        between: "\n",
        ..BASE
    },
    Format {
        name: "mistral-array",
        section: ("[TOOL_CALLS] [", "]"),
        head: Head::Object(&[Field::Name("name"), Field::Arguments("arguments"), Field::Id("id")]),
        between: ", ",
        ids: Ids::Nine,
        ..BASE
    },
    Format {
        name: "mistral-id",
        open: &["[TOOL_CALLS] "],
        head: Head::Name(&["[CALL_ID]{id}[ARGS]"], Arguments::Json),
        ids: Ids::Nine,
        ..BASE
    },
    Format { name: "mistral", open: &["[TOOL_CALLS] "], head: Head::Name(&["[ARGS]"], Arguments::Json), ids: Ids::Nine, ..BASE },
    Format {
        name: "deepseek-r1",
        section: ("<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>"),
        omits_section: true,
        open: &["<｜tool▁call▁begin｜>function<｜tool▁sep｜>"],
        head: Head::Name(&["\n```json\n"], Arguments::Json),
        close: "\n```<｜tool▁call▁end｜>",
        between: "\n",
        ..BASE
    },
    Format {
        name: "deepseek-v3.1",
        section: ("<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>"),
        omits_section: true,
        open: &["<｜tool▁call▁begin｜>"],
        head: Head::Name(&["<｜tool▁sep｜>"], Arguments::Json),
        close: "<｜tool▁call▁end｜>",
        ..BASE
    },
    Format {
        name: "kimi-k2",
        section: ("<|tool_calls_section_begin|>", "<|tool_calls_section_end|>"),
        omits_section: true,
        open: &["<|tool_call_begin|>functions.", "<|tool_call_begin|>"],
        head: Head::Name(&[":{id} <|tool_call_argument_begin|>"], Arguments::Json),
        close: "<|tool_call_end|>",
        ids: Ids::Counted,
        ends_thoughts: &["<|tool_calls_section_begin|>"],
        taught_by: &["tool_declare"],
        ..BASE
    },
    Format { name: "minimax-m1", section: ("<tool_calls>\n", "\n</tool_calls>"), between: "\n", ..BASE },
    Format { name: "minimax-m2", section: ("<minimax:tool_call>\n", "\n</minimax:tool_call>"), ..INVOKE },
    Format { name: "nemotron-v2", section: ("<TOOLCALL> [", "] </TOOLCALL>"), between: ", ", ..BASE },
    Format {
        name: "seed-oss",
        open: &["<seed:tool_call>\n<function=", "<function="],
        head: Head::Name(
            &[">\n"],
            Arguments::Pairs(Pairs { open: "<parameter=", middles: &PARAMETER, on_lines: false, inner: None }),
        ),
        close: "\n</function>\n</seed:tool_call>",
        between: "\n",
        ..BASE
    },
    Format {
        name: "functionary-3.1",
        open: &["<function="],
        head: Head::Name(&[">"], Arguments::Json),
        close: "</function>",
        code: &["<|python_tag|>"],
        ..BASE
    },
    Format {
        name: "functionary-3.2",
        open: &[">>>"],
        head: Head::Name(&["\n"], Arguments::Json),
        leads: ">>>",
        text_marker: ">>>all",
        code: &[">>>{tool}\n"],
        ..BASE
    },
    Format { name: "granite-3", section: ("<|tool_call|> [", "]"), between: ", ", taught_by: &["<|tool_call|>"], ..BASE },
    Format { name: "granite-3.0", section: ("<tool_call> [", "]"), between: ", ", ..BASE },
    Format { name: "granite-20b", open: &["<function_call> "], between: "\n", ..BASE },
    Format {
        name: "command-r7b",
        section: ("<|START_ACTION|>[\n    ", "\n]<|END_ACTION|>"),
        head: Head::Object(&[Field::Id("tool_call_id"), Field::Name("tool_name"), Field::Arguments("parameters")]),
        between: ",\n    ",
        ..BASE
    },
    Format {
        name: "command-r-plus",
        section: ("Action: ```json\n[\n    ", "\n] ```"),
        head: Head::Object(&[Field::Name("tool_name"), Field::Arguments("parameters")]),
        between: ",\n    ",
        ..BASE
    },
    Format {
        name: "apertus",
        section: ("<|tools_prefix|> [", "] <|tools_suffix|>"),
        open: &["{\""],
        head: Head::Name(&["\": "], Arguments::Json),
        close: "}",
        between: ", ",
        ..BASE
    },
    Format { name: "functools", section: ("functools[", "]"), between: ", ", taught_by: &["<|tool|>"], ..BASE },
    Format { name: "hunyuan", section: ("<tool_calls> [", "] </tool_calls>"), between: ", ", ..BASE },
    Format {
        name: "hunyuan-3",
        section: ("<tool_calls>\n", "\n</tool_calls>"),
        open: &["<tool_call>"],
        head: Head::Name(&["<tool_sep>\n"], ARG_KEYS),
        close: "\n</tool_call>",
        between: "\n",
        ..BASE
    },
    Format {
        name: "hunyuan-3-open",
        section: ("<tool_calls:opensource>\n", "\n</tool_calls:opensource>"),
        open: &["<tool_call:opensource>"],
        head: Head::Name(
            &["<tool_sep:opensource>\n"],
            Arguments::Pairs(Pairs {
                open: "<arg_key:opensource>",
                middles: &[Middle {
                    text: "</arg_key:opensource>\n<arg_value:opensource>",
                    value: Value::Schema,
                    close: "</arg_value:opensource>",
                }],
                on_lines: false,
                inner: None,
            }),
        ),
        close: "\n</tool_call:opensource>",
        between: "\n",
        ..BASE
    },
    Format {
        name: "olmo-3",
        section: ("<function_calls>\n", "\n</function_calls>"),
        head: Head::Name(&["("], Arguments::Python),
        between: "\n",
        ..BASE
    },
    Format {
        name: "lfm2",
        section: ("<|tool_call_start|> [", "] <|tool_call_end|>"),
        head: Head::Name(&["("], Arguments::Python),
        between: ", ",
        taught_by: &["<|tool_list_start|>", "List of tools: ["],
        also: &[
            Format { section: ("<|tool_call_start|> [", "] <|tool_call_end|>"), between: ", ", ..BASE },
            Format { section: ("<|tool_call_start|>\n", "\n<|tool_call_end|>"), between: "\n", ..BASE },
            Format {
                section: ("<|tool_call_start|>\n", "\n<|tool_call_end|>"),
                head: Head::Name(&["("], Arguments::Python),
                between: "\n",
                ..BASE
            },
        ],
        ..BASE
    },
    Format {
        name: "llama4",
        section: ("[", "]"),
        head: Head::Name(&["("], Arguments::Python),
        between: ", ",
        is_whole: true,
        ..BASE
    },
    Format {
        name: "internlm",
        open: &["<|action_start|> <|plugin|>\n"],
        head: Head::Object(&[Field::Name("name"), Field::Arguments("parameters")]),
        close: "<|action_end|>",
        ..BASE
    },
    Format {
        name: "step-3",
        section: ("<｜tool_calls_begin｜>", "<｜tool_calls_end｜>"),
        open: &["<｜tool_call_begin｜>function<｜tool_sep｜><steptml:invoke name=\""],
        head: Head::Name(
            &["\">"],
            Arguments::Pairs(Pairs {
                open: "<steptml:parameter name=\"",
                middles: &[Middle { text: "\">", value: Value::Schema, close: "</steptml:parameter>" }],
                on_lines: false,
                inner: None,
            }),
        ),
        close: "</steptml:invoke><｜tool_call_end｜>",
        ..BASE
    },
    Format {
        name: "gemma-4",
        open: &["<|tool_call>call:"],
        head: Head::Name(&["{"], Arguments::Quoted("<|\"|>")),
        close: "<tool_call|>",
        ..BASE
    },
    Format {
        name: "functiongemma",
        open: &["<start_function_call>call:"],
        head: Head::Name(&["{"], Arguments::Quoted("<escape>")),
        close: "<end_function_call>",
        ..BASE
    },
    Format {
        name: "deepseek-v3.2",
        section: ("<｜DSML｜function_calls>\n", "\n</｜DSML｜function_calls>"),
        ends_thoughts: &["<｜DSML｜function_calls>"],
        ..DSML
    },
    Format {
        name: "deepseek-v4",
        section: ("<｜DSML｜tool_calls>\n", "\n</｜DSML｜tool_calls>"),
        ends_thoughts: &["<｜DSML｜tool_calls>"],
        ..DSML
    },
    Format {
        name: "gpt-oss",
        open: &["<|channel|>commentary to=functions.", "<|channel|>analysis to=functions.", " to=functions."],
        head: Head::Name(
            &[
                " <|constrain|>json<|message|>",
                " json<|message|>",
                "<|channel|>commentary <|constrain|>json<|message|>",
                "<|channel|>commentary json<|message|>",
                "<|channel|>analysis json<|message|>",
                "<|message|>",
            ],
            Arguments::Json,
        ),
        close: "<|call|>",
        ..BASE
    },
    Format {
        name: "muse",
        section: ("<atem:function_calls>\n", "\n</atem:function_calls>"),
        open: &["<atem:invoke name=\""],
        head: Head::Name(
            &["\">\n"],
            Arguments::Pairs(Pairs {
                open: "<atem:parameter name=\"",
                middles: &[Middle { text: "\">", value: Value::Schema, close: "</atem:parameter>" }],
                on_lines: false,
                inner: None,
            }),
        ),
        close: "\n</atem:invoke>",
        between: "\n",
        address: ("to=", "<|message|>"),
        ..BASE
    },
    Format { name: "dots", section: ("<dots_function_call>\n", "\n</dots_function_call>"), ..INVOKE },
    Format { name: "longcat", open: &["<longcat_tool_call>\n"], close: "\n</longcat_tool_call>", between: "\n", ..BASE },
    Format {
        name: "minicpm-5",
        open: &["<function name=\""],
        head: Head::Name(
            &["\">"],
            Arguments::Pairs(Pairs {
                open: "<param name=\"",
                middles: &[
                    Middle { text: "\"><![CDATA[", value: Value::Text, close: "]]></param>" },
                    Middle { text: "\">", value: Value::Schema, close: "</param>" },
                ],
                on_lines: false,
                inner: None,
            }),
        ),
        close: "</function>",
        ..BASE
    },
    Format { name: "gigachat-3", open: &["<|message_sep|>\n\nfunction call<|role_sep|>\n"], ..BASE },
    Format { name: "gigachat-3.1", open: &["<|function_call|>"], ..BASE },
    Format {
        name: "solar",
        section: ("<|tool_calls|>", "<|calls|>"),
        open: &["<|tool_call:begin|>{id}<|tool_call:name|>"],
        head: Head::Name(&["<|tool_call:args|>"], Arguments::Json),
        close: "<|tool_call:end|>",
        ids: Ids::Written,
        ..BASE
    },
    Format {
        name: "kimi-k3",
        section: ("<|open|>tools<|sep|>", "<|close|>tools<|sep|>"),
        open: &["<|open|>call tool=\""],
        head: Head::Name(
            &["\" index=\"{id}\"<|sep|>"],
            Arguments::Pairs(Pairs {
                open: "<|open|>argument key=\"",
                middles: &[
                    Middle { text: "\" type=\"string\"<|sep|>", value: Value::Text, close: "<|close|>argument<|sep|>" },
                    Middle { text: "\" type=\"{id}\"<|sep|>", value: Value::Json, close: "<|close|>argument<|sep|>" },
                ],
                on_lines: false,
                inner: None,
            }),
        ),
        close: "<|close|>call<|sep|>",
        ends_thoughts: &["<|open|>tools<|sep|>"],
        ..BASE
    },
    Format {
        name: "minimax-m3",
        section: ("]<]minimax[>[<tool_call>\n", "\n]<]minimax[>[</tool_call>"),
        open: &["]<]minimax[>[<invoke name=\""],
        head: Head::Name(
            &["\">"],
            Arguments::Pairs(Pairs {
                open: "]<]minimax[>[<",
                middles: &[Middle { text: ">", value: Value::Schema, close: "]<]minimax[>[</{key}>" }],
                on_lines: false,
                inner: Some("]<]minimax[>[<"),
            }),
        ),
        close: "]<]minimax[>[</invoke>",
        between: "\n",
        ..BASE
    },
    Format {
        name: "xlam",
        section: ("[", "]"),
        between: ", ",
        is_whole: true,
        also: &[
            Format { section: ("```json\n[", "]\n```"), between: ", ", is_whole: true, ..BASE },
            Format { section: ("```\n[", "]\n```"), between: ", ", is_whole: true, ..BASE },
            Format { section: ("[TOOL_CALLS] [", "]"), between: ", ", is_whole: true, ..BASE },
        ],
        ..BASE
    },
];

/// Llama 3.1's calls of built-in tools, which its prompts enable by name.
const BUILTIN: Format =
    Format { open: &["<|python_tag|>"], head: Head::Name(&[".call("], Arguments::Python), between: "; ", is_whole: true, ..BASE };

/// A pair of the tags `<parameter=KEY>`.
const PARAMETER: [Middle; 1] = [Middle { text: ">", value: Value::Schema, close: "</parameter>" }];

/// Arguments in the tags `<arg_key>` and `<arg_value>`.
const ARG_KEYS: Arguments = Arguments::Pairs(Pairs {
    open: "<arg_key>",
    middles: &[Middle { text: "</arg_key>\n<arg_value>", value: Value::Schema, close: "</arg_value>" }],
    on_lines: false,
    inner: None,
});

/// Calls in the tags `<invoke name="NAME">` and `<parameter name="KEY">`.
const INVOKE: Format = Format {
    open: &["<invoke name=\""],
    head: Head::Name(
        &["\">\n"],
        Arguments::Pairs(Pairs {
            open: "<parameter name=\"",
            middles: &[Middle { text: "\">", value: Value::Schema, close: "</parameter>" }],
            on_lines: false,
            inner: None,
        }),
    ),
    close: "\n</invoke>",
    between: "\n",
    ..BASE
};

/// Calls of DeepSeek V3.2 and V4, whose sections have different tags.
const DSML: Format = Format {
    open: &["<｜DSML｜invoke name=\""],
    head: Head::Name(
        &["\">\n"],
        Arguments::Pairs(Pairs {
            open: "<｜DSML｜parameter name=\"",
            middles: &[
                Middle { text: "\" string=\"true\">", value: Value::Text, close: "</｜DSML｜parameter>" },
                Middle { text: "\" string=\"false\">", value: Value::Json, close: "</｜DSML｜parameter>" },
            ],
            on_lines: false,
            inner: None,
        }),
    ),
    close: "\n</｜DSML｜invoke>",
    between: "\n",
    ..BASE
};
