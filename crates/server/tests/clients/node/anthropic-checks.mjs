// Checks of the npm package `@anthropic-ai/sdk`.

import Anthropic, { AuthenticationError, BadRequestError, NotFoundError, RateLimitError } from "@anthropic-ai/sdk";

import {
  ASK_WEATHER, KEY, LIMITED_KEY, LOGIT_BIAS, LONG, MODEL, QUESTION, STORY, URL_BASE, WEATHER_SCHEMA, check,
  checkAbort, checkRetries, checkWeather, expect, expectError, run,
} from "./checks.mjs";

const make = (settings = {}) => new Anthropic({ apiKey: KEY, baseURL: URL_BASE, maxRetries: 0, ...settings });
const client = make();
const GREEDY = { model: MODEL, max_tokens: 60, temperature: 0 };
const answer = (settings = {}) => client.messages.create({ ...GREEDY, messages: QUESTION, ...settings });
const text = (reply) => reply.content.map((block) => block.text ?? "").join("");
const TOOL = { name: "get_weather", description: "Current weather of a city", input_schema: WEATHER_SCHEMA };
const FORCED = { messages: ASK_WEATHER, tools: [TOOL], tool_choice: { type: "tool", name: "get_weather" } };

check("messages", async () => {
  const reply = await answer();
  expect(text(reply).length > 10 && reply.stop_reason === "end_turn", reply);
});

check("messages-streaming", async () => {
  const stream = client.messages.stream({ ...GREEDY, messages: QUESTION });
  const kinds = new Set();
  stream.on("streamEvent", (event) => kinds.add(event.type));
  const final = await stream.finalMessage();
  expect(text(final) === text(await answer()), final);
  expect(kinds.has("message_delta") && kinds.has("content_block_stop"), [...kinds]);
});

check("messages-system", async () => {
  expect(text(await answer({ system: "You are a poet." })), "no text");
});

check("messages-tools", async () => {
  const reply = await answer(FORCED);
  expect(reply.stop_reason === "tool_use", reply);
  checkWeather(reply.content.find((block) => block.type === "tool_use").input);
});

check("messages-tools-streaming", async () => {
  const final = await client.messages.stream({ ...GREEDY, ...FORCED }).finalMessage();
  checkWeather(final.content.find((block) => block.type === "tool_use").input);
});

check("tool-results", async () => {
  const { content } = await answer(FORCED);
  const call = content.find((block) => block.type === "tool_use");
  const result = { type: "tool_result", tool_use_id: call.id, content: "7 degrees" };
  const history = [...ASK_WEATHER, { role: "assistant", content }, { role: "user", content: [result] }];
  const reply = await answer({ messages: history, tools: [TOOL] });
  expect(reply.content.length > 0, reply);
});

check("messages-stop", async () => {
  const whole = text(await answer());
  const word = whole.slice(5, 11);
  const reply = await answer({ stop_sequences: [word] });
  expect(reply.stop_reason === "stop_sequence" && reply.stop_sequence === word, reply);
  expect(text(reply) === whole.slice(0, whole.indexOf(word)), reply);
});

check("messages-count", async () => {
  const found = await client.messages.countTokens({ model: MODEL, messages: QUESTION });
  expect(found.input_tokens > 0, found);
});

check("abort", () => checkAbort(async () => {
  const stream = await client.messages.create({
    model: MODEL, max_tokens: LONG, messages: [{ role: "user", content: STORY }], stream: true,
    logit_bias: LOGIT_BIAS,
  });
  return { chunks: stream[Symbol.asyncIterator](), abort: () => stream.controller.abort() };
}));

check("retries", async () => {
  await checkRetries((found) => found instanceof RateLimitError, (maxRetries) =>
    make({ apiKey: LIMITED_KEY, maxRetries }).messages.create({
      model: MODEL, max_tokens: 1, messages: QUESTION,
    }));
});

check("unknown-field", async () => {
  expect(text(await answer({ no_such_field: 1 })) === text(await answer()), "another text");
});

check("error-key", async () => {
  const wrong = make({ apiKey: "wrong" }).messages;
  await expectError(AuthenticationError, () => wrong.create({ ...GREEDY, messages: QUESTION }));
});

check("error-model", async () => {
  const error = await expectError(NotFoundError, () => answer({ model: "no-such-model" }));
  expect(error.error.error.type === "not_found_error", error.error);
});

check("error-param", async () => {
  const error = await expectError(BadRequestError, () => answer({ temperature: "hot" }));
  expect(error.error.error.message.includes("temperature"), error.error);
});

check("headers", async () => {
  expect((await answer())._request_id, "request-id, which the package reads");
});

await run("anthropic (npm)", "@anthropic-ai/sdk");
