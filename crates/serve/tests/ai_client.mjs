// Talks to a server as users of the AI SDK do. Usage: ai_client.mjs URL PACKAGES; prints what worked as JSON.
import assert from "node:assert/strict";
import { createRequire } from "node:module";

const [url, packages] = process.argv.slice(2);
const find = createRequire(`${packages}/`);
const { embedMany, generateText, jsonSchema, Output, stepCountIs, streamText, tool } = await import(find.resolve("ai"));
const { createOpenAICompatible } = await import(find.resolve("@ai-sdk/openai-compatible"));
const provider = createOpenAICompatible({ name: "flambeau", baseURL: `${url}/v1`, includeUsage: true, supportsStructuredOutputs: true });
const prompt = "where is the cat ?";
const short = { model: provider("tiny"), prompt, temperature: 0, maxOutputTokens: 8, maxRetries: 0 };
const city = jsonSchema({ type: "object", properties: { city: { type: "string" } }, required: ["city"], additionalProperties: false });

async function text() {
  const answer = await generateText(short);
  assert.deepEqual([answer.usage.inputTokens, answer.usage.outputTokens, answer.finishReason], [9, 8, "length"]);
}

async function stream() {
  const whole = await generateText(short);
  const answer = streamText(short);
  let text = "";
  for await (const piece of answer.textStream) text += piece;
  assert.equal(text, whole.text);
  assert.equal((await answer.usage).totalTokens, whole.usage.totalTokens);
}

async function tools() {
  const told = [];
  const weather = tool({ inputSchema: city, execute: async (input) => (told.push(input), "sunny") });
  const fields = { model: provider("caller"), prompt, tools: { weather }, stopWhen: stepCountIs(2), maxRetries: 0 };
  const answer = await generateText(fields);
  assert.deepEqual(answer.steps.map((step) => step.finishReason), ["tool-calls", "tool-calls"]);
  await streamText(fields).consumeStream({ onError: (error) => assert.fail(error) });
  assert.deepEqual(told, Array(4).fill({ city: "Ulm" }));
}

async function structured() {
  const schema = jsonSchema({ type: "object", properties: { ok: { type: "boolean" } }, required: ["ok"], additionalProperties: false });
  const answer = await generateText({ model: provider("former"), prompt, output: Output.object({ schema }), maxRetries: 0 });
  assert.deepEqual(answer.output, { ok: true });
}

async function embeddings() {
  const values = ["A man is eating food.", "Fox"];
  const answer = await embedMany({ model: provider.embeddingModel("encoder"), values, maxRetries: 0 });
  assert.deepEqual(answer.embeddings.map((embedding) => embedding.length), [16, 16]);
}

async function errors() {
  for (const [fields, statusCode] of [[{ model: provider("nobody") }, 404], [{ temperature: 9 }, 400]]) {
    await assert.rejects(generateText({ ...short, ...fields }), { name: "AI_APICallError", statusCode });
  }
}

async function abort() {
  const control = new AbortController();
  const answer = streamText({ ...short, model: provider("endless"), maxOutputTokens: 2000, abortSignal: control.signal });
  for await (const part of answer.fullStream) {
    if (part.type === "text-delta") control.abort();
    if (part.type === "abort") return;
  }
  assert.fail("the stream was not cut");
}

const worked = [];
for (const step of [text, stream, tools, structured, embeddings, errors, abort]) {
  await step();
  worked.push(step.name);
}
console.log(JSON.stringify(worked));
