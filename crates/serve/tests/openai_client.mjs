// Talks to a server as users of OpenAI's package for JavaScript do. Usage: openai_client.mjs URL PACKAGES; prints what worked as JSON.
import assert from "node:assert/strict";
import { createRequire } from "node:module";

const [url, packages] = process.argv.slice(2);
const OpenAI = createRequire(`${packages}/`)("openai");
const client = new OpenAI({ baseURL: `${url}/v1`, apiKey: "none", maxRetries: 0 });
const messages = [{ role: "user", content: "where is the cat ?" }];
const tools = [{ type: "function", function: { name: "weather", parameters: { type: "object", properties: { city: { type: "string" } } } } }];
const short = { model: "tiny", messages, temperature: 0, max_tokens: 8 };

async function chat() {
  const answer = await client.chat.completions.create({ ...short, logprobs: true, top_logprobs: 2 });
  assert.equal(answer.usage.prompt_tokens, 9);
  assert.equal(answer.choices[0].logprobs.content[0].top_logprobs.length, 2);
}

async function stream() {
  const whole = await client.chat.completions.create(short);
  const events = await client.chat.completions.create({ ...short, stream: true, stream_options: { include_usage: true } });
  let text = "", usage;
  for await (const event of events) {
    usage = event.usage ?? usage;
    text += event.choices.map((choice) => choice.delta.content ?? "").join("");
  }
  assert.equal(text, whole.choices[0].message.content);
  assert.equal(usage.total_tokens, whole.usage.total_tokens);
}

async function callTools() {
  const answer = await client.chat.completions.create({ model: "caller", messages, tools });
  const [call] = answer.choices[0].message.tool_calls;
  assert.equal(answer.choices[0].finish_reason, "tool_calls");
  assert.deepEqual([call.function.name, JSON.parse(call.function.arguments)], ["weather", { city: "Ulm" }]);
  const final = await client.chat.completions.stream({ model: "caller", messages, tools }).finalMessage();
  assert.deepEqual(JSON.parse(final.tool_calls[0].function.arguments), { city: "Ulm" });
  const reply = [answer.choices[0].message, { role: "tool", tool_call_id: call.id, content: "sunny" }];
  await client.chat.completions.create({ model: "caller", messages: [...messages, ...reply], tools });
}

async function parse() {
  const schema = { type: "object", properties: { ok: { type: "boolean" } }, required: ["ok"], additionalProperties: false };
  const response_format = { type: "json_schema", json_schema: { name: "form", strict: true, schema } };
  const answer = await client.chat.completions.create({ model: "former", messages, response_format });
  assert.deepEqual(JSON.parse(answer.choices[0].message.content), { ok: true });
}

async function responses() {
  const fields = { model: "tiny", input: messages, instructions: "the cat", max_output_tokens: 8, temperature: 0 };
  const whole = await client.responses.create(fields);
  let text = "";
  for await (const event of client.responses.stream(fields)) {
    if (event.type === "response.output_text.delta") text += event.delta;
  }
  assert.equal(text, whole.output_text);
}

async function embeddings() {
  const input = ["A man is eating food.", "Fox"];
  const answer = await client.embeddings.create({ model: "encoder", input });
  const floats = await client.embeddings.create({ model: "encoder", input, encoding_format: "float" });
  assert.deepEqual(answer.data.map((entry) => entry.embedding.length), [16, 16]);
  answer.data.forEach(({ embedding }, at) => assert.deepEqual(embedding, floats.data[at].embedding.map(Math.fround)));
}

async function errors() {
  for (const [kind, fields, param] of [
    [OpenAI.NotFoundError, { model: "nobody" }, "model"],
    [OpenAI.BadRequestError, { model: "tiny", temperature: 9 }, "temperature"],
  ]) {
    await assert.rejects(client.chat.completions.create({ messages, ...fields }), (error) => {
      assert(error instanceof kind && error.requestID.startsWith("req_"), error);
      return error.param === param;
    });
  }
}

async function abort() {
  const control = new AbortController();
  const fields = { model: "tiny", messages, stream: true, max_tokens: 200, logit_bias: { 2: -100 } };
  const events = await client.chat.completions.create(fields, { signal: control.signal });
  for await (const _ of events) control.abort();
}

const worked = [];
for (const step of [chat, stream, callTools, parse, responses, embeddings, errors, abort]) {
  await step();
  worked.push(step.name);
}
console.log(JSON.stringify(worked));
