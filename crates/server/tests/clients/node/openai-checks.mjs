// Checks of the npm package `openai`.

import OpenAI, {
  APIConnectionTimeoutError, AuthenticationError, BadRequestError, NotFoundError, RateLimitError,
} from "openai";
import { zodFunction, zodResponseFormat, zodTextFormat } from "openai/helpers/zod";
import { z } from "zod";

import {
  ASK_WEATHER, EMBEDDING_MODEL, KEY, LIMITED_KEY, LOGIT_BIAS, LONG, MODEL, QUESTION, STORY, URL_BASE,
  WEATHER_SCHEMA, check, checkAbort, checkRetries, checkWeather, expect, expectError, idle, run,
} from "./checks.mjs";

const make = (settings = {}) =>
  new OpenAI({ apiKey: KEY, baseURL: `${URL_BASE}/v1`, maxRetries: 0, ...settings });
const client = make();
const GREEDY = { model: MODEL, temperature: 0, max_tokens: 60 };
const answer = (settings = {}) =>
  client.chat.completions.create({ ...GREEDY, messages: QUESTION, ...settings });
const text = (reply) => reply.choices[0].message.content;
const Mountain = z.object({ kind: z.enum(["hill", "peak"]), metres: z.number().int(), snow: z.boolean() });
const DESCRIBE = [{ role: "user", content: "Describe a mountain as JSON." }];
const weather = {
  type: "function",
  function: { name: "get_weather", description: "Current weather of a city", parameters: WEATHER_SCHEMA },
};
const askWeather = (settings = {}) =>
  answer({ messages: ASK_WEATHER, tools: [weather], tool_choice: "required", ...settings });

async function collect(stream) {
  const chunks = [];
  for await (const chunk of stream) chunks.push(chunk);
  expect(new Set(chunks.map((chunk) => `${chunk.id} ${chunk.created} ${chunk.object}`)).size === 1, chunks[0]);
  expect(chunks[0].choices[0].delta.role === "assistant", chunks[0]);
  const reasons = chunks.flatMap((chunk) => chunk.choices.map((choice) => choice.finish_reason));
  expect(reasons.slice(0, -1).every((reason) => reason === null) && reasons.at(-1), reasons);
  return chunks;
}

const joined = (chunks) => chunks.map((chunk) => chunk.choices[0]?.delta.content ?? "").join("");

check("models", async () => {
  const ids = [];
  for await (const model of client.models.list()) ids.push(model.id);
  expect(ids.includes(MODEL), ids);
});

check("chat", async () => {
  const reply = await answer();
  expect(text(reply).length > 10 && reply.choices[0].finish_reason === "stop", reply);
  expect(reply.object === "chat.completion" && Number.isInteger(reply.created), reply);
});

check("usage", async () => {
  const { usage } = await answer();
  expect(usage.total_tokens === usage.prompt_tokens + usage.completion_tokens, usage);
  expect(Number.isInteger(usage.prompt_tokens_details.cached_tokens), usage);
});

check("content-parts", async () => {
  const parts = [{ role: "user", content: [{ type: "text", text: QUESTION[0].content }] }];
  expect(text(await answer({ messages: parts })) === text(await answer()), parts);
});

check("developer-role", async () => {
  const told = (role) => answer({ messages: [{ role, content: "You are a poet." }, ...QUESTION] });
  expect(text(await told("developer")) === text(await told("system")), "another text");
});

check("streaming", async () => {
  const chunks = await collect(await answer({ stream: true }));
  expect(joined(chunks) === text(await answer()), joined(chunks));
  const final = await client.chat.completions.stream({ ...GREEDY, messages: QUESTION }).finalContent();
  expect(final === joined(chunks), final);
});

check("stream-usage", async () => {
  const chunks = await collect(await answer({ stream: true, stream_options: { include_usage: true } }));
  expect(chunks.at(-1).choices.length === 0 && chunks.at(-1).usage.completion_tokens > 0, chunks.at(-1));
  expect(chunks.slice(0, -1).every((chunk) => chunk.usage === null || chunk.usage === undefined), chunks[0]);
});

check("n", async () => {
  const reply = await answer({ n: 2, temperature: 1.5, max_tokens: 8 });
  expect(reply.choices.map((choice) => choice.index).join() === "0,1", reply);
});

check("seed", async () => {
  const sampled = async () => text(await answer({ temperature: 1.5, seed: 11, max_tokens: 20 }));
  expect((await sampled()) === (await sampled()), "another text");
});

check("stop", async () => {
  const whole = text(await answer());
  const reply = await answer({ stop: [whole.slice(5, 11)] });
  expect(text(reply) === whole.slice(0, whole.indexOf(whole.slice(5, 11))), text(reply));
});

check("logprobs", async () => {
  const reply = await answer({ logprobs: true, top_logprobs: 2 });
  expect(reply.choices[0].logprobs.content[0].top_logprobs.length === 2, reply);
});

check("max-completion-tokens", async () => {
  const reply = await client.chat.completions.create({
    model: MODEL, messages: QUESTION, max_completion_tokens: 5,
  });
  expect(reply.usage.completion_tokens === 5 && reply.choices[0].finish_reason === "length", reply);
});

check("tools", async () => {
  const reply = await askWeather();
  expect(reply.choices[0].finish_reason === "tool_calls", reply);
  checkWeather(reply.choices[0].message.tool_calls[0].function.arguments);
  const runner = client.chat.completions.runTools({
    ...GREEDY, messages: ASK_WEATHER,
    tools: [zodFunctionTool(async () => "7 degrees")],
  });
  expect(typeof (await runner.finalContent()) === "string", "end of the conversation");
});

function zodFunctionTool(called) {
  return zodFunction({
    name: "get_weather", description: "Current weather of a city", function: called,
    parameters: z.object({ city: z.enum(["Oslo", "Paris"]), unit: z.enum(["celsius"]) }),
  });
}

check("tool-choice", async () => {
  const reply = await askWeather({ tool_choice: { type: "function", function: { name: "get_weather" } } });
  checkWeather(reply.choices[0].message.tool_calls[0].function.arguments);
  const none = await askWeather({ tool_choice: "none" });
  expect(!none.choices[0].message.tool_calls?.length, none);
});

check("tools-streaming", async () => {
  const chunks = await collect(await askWeather({ stream: true }));
  const deltas = chunks.flatMap((chunk) => chunk.choices[0]?.delta.tool_calls ?? []);
  expect(deltas[0].id && deltas[0].type === "function" && deltas[0].function.name === "get_weather", deltas[0]);
  expect(deltas.every((delta) => delta.id !== null), deltas);
  const stream = client.chat.completions.stream({
    ...GREEDY, messages: ASK_WEATHER, tools: [weather], tool_choice: "required",
  });
  const final = await stream.finalChatCompletion();
  checkWeather(final.choices[0].message.tool_calls[0].function.arguments);
});

check("parallel-tool-calls", async () => {
  const reply = await askWeather({ parallel_tool_calls: false });
  expect(reply.choices[0].message.tool_calls.length === 1, reply);
});

check("tool-results", async () => {
  const call = (await askWeather()).choices[0].message;
  const result = { role: "tool", tool_call_id: call.tool_calls[0].id, content: "7 degrees" };
  const reply = await answer({ messages: [...ASK_WEATHER, call, result], tools: [weather] });
  expect(text(reply) || reply.choices[0].message.tool_calls, reply);
});

check("json-mode", async () => {
  const reply = await answer({ messages: DESCRIBE, response_format: { type: "json_object" } });
  expect(text(reply).trimStart().startsWith("{"), reply);
});

check("json-schema", async () => {
  const format = zodResponseFormat(Mountain, "mountain");
  const reply = await client.chat.completions.parse({ ...GREEDY, messages: DESCRIBE, response_format: format });
  expect(typeof reply.choices[0].message.parsed.snow === "boolean", reply);
});

check("json-schema-streaming", async () => {
  const format = zodResponseFormat(Mountain, "mountain");
  const stream = client.chat.completions.stream({ ...GREEDY, messages: DESCRIBE, response_format: format });
  const final = await stream.finalChatCompletion();
  expect(Number.isInteger(final.choices[0].message.parsed.metres), final);
});

check("embeddings", async () => {
  const plain = { model: EMBEDDING_MODEL, input: ["a river", "a lake"], encoding_format: "float" };
  const reply = await client.embeddings.create(plain);
  expect(reply.data.length === 2 && reply.data[1].index === 1, reply.usage);
});

check("embeddings-base64", async () => {
  // Without a form the package asks for base64 and decodes it.
  const [plain, decoded] = await Promise.all([{ encoding_format: "float" }, {}].map((form) =>
    client.embeddings.create({ model: EMBEDDING_MODEL, input: "a river", ...form })));
  const [a, b] = [plain, decoded].map((reply) => Array.from(reply.data[0].embedding));
  expect(a.length === b.length && a.every((value, at) => Math.abs(value - b[at]) < 1e-6), b.slice(0, 3));
});

const complete = (settings) =>
  client.completions.create({ ...GREEDY, max_tokens: 10, prompt: "Once upon a time", ...settings });

check("completions", async () => {
  const reply = await complete({});
  expect(reply.object === "text_completion" && reply.choices[0].text, reply);
});

check("completions-streaming", async () => {
  let streamed = "";
  for await (const chunk of await complete({ stream: true })) streamed += chunk.choices[0]?.text ?? "";
  expect(streamed === (await complete({})).choices[0].text, streamed);
});

check("completions-echo", async () => {
  const { choices: [choice] } = await complete({ echo: true, logprobs: 1, max_tokens: 1 });
  expect(choice.logprobs.tokens.join("") === choice.text, choice);
  expect(choice.logprobs.token_logprobs[0] === null, choice.logprobs);
});

check("completions-prompts", async () => {
  const reply = await complete({ prompt: ["One", "Two"] });
  expect(reply.choices.map((choice) => choice.index).join() === "0,1", reply);
});

const RESPONSE = { model: MODEL, temperature: 0, max_output_tokens: 60 };
const TOOL = { type: "function", name: "get_weather", parameters: WEATHER_SCHEMA, strict: true };

check("responses", async () => {
  const reply = await client.responses.create({ ...RESPONSE, input: "What is a glacier?" });
  expect(reply.status === "completed" && reply.output_text.length > 10, reply);
});

check("responses-streaming", async () => {
  const stream = client.responses.stream({ ...RESPONSE, input: "What is a glacier?" });
  const kinds = [];
  for await (const event of stream) kinds.push(event.type);
  expect(kinds[0] === "response.created" && kinds.at(-1) === "response.completed", kinds);
  expect((await stream.finalResponse()).output_text.length > 10, kinds);
});

check("responses-tools", async () => {
  const reply = await client.responses.create({
    ...RESPONSE, input: ASK_WEATHER, tools: [TOOL], tool_choice: "required",
  });
  checkWeather(reply.output.find((item) => item.type === "function_call").arguments);
});

check("responses-schema", async () => {
  const reply = await client.responses.parse({
    ...RESPONSE, input: DESCRIBE, text: { format: zodTextFormat(Mountain, "mountain") },
  });
  expect(typeof reply.output_parsed.snow === "boolean", reply);
});

check("abort", () => checkAbort(async () => {
  const controller = new AbortController();
  const stream = await client.chat.completions.create({
    model: MODEL, max_tokens: LONG, logit_bias: LOGIT_BIAS, stream: true,
    messages: [{ role: "user", content: STORY }],
  }, { signal: controller.signal });
  return { chunks: stream[Symbol.asyncIterator](), abort: () => controller.abort() };
}));

check("retries", async () => {
  const error = await checkRetries((found) => found instanceof RateLimitError, (maxRetries) =>
    make({ apiKey: LIMITED_KEY, maxRetries }).chat.completions.create({
      model: MODEL, messages: QUESTION, max_tokens: 1,
    }));
  expect(error.code === "rate_limit_exceeded", error);
});

check("timeout", async () => {
  await expectError(APIConnectionTimeoutError, () => make({ timeout: 300 }).chat.completions.create({
    model: MODEL, max_tokens: LONG, logit_bias: LOGIT_BIAS, messages: [{ role: "user", content: STORY }],
  }));
  await idle();
});

check("unknown-field", async () => {
  expect(text(await answer({ no_such_field: { a: 1 } })) === text(await answer()), "another text");
});

check("error-key", async () => {
  const error = await expectError(AuthenticationError, () => make({ apiKey: "wrong" }).models.list());
  expect(error.code === "invalid_api_key", error);
});

check("error-model", async () => {
  const error = await expectError(NotFoundError, () => answer({ model: "no-such-model" }));
  expect(error.code === "model_not_found", error);
});

check("error-param", async () => {
  const error = await expectError(BadRequestError, () => answer({ temperature: "hot" }));
  expect(error.param === "temperature" && error.type === "invalid_request_error", error);
});

check("headers", async () => {
  const reply = await answer();
  expect(reply._request_id, "x-request-id, which the package reads");
});

await run("openai (npm)", "openai");
