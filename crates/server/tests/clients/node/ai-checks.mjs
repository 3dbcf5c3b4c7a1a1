// Checks of the npm packages `ai` and `@ai-sdk/openai-compatible` (Vercel AI SDK).

import { createOpenAICompatible } from "@ai-sdk/openai-compatible";
import {
  APICallError, Output, embedMany, generateText, jsonSchema, stepCountIs, streamText, tool,
} from "ai";
import { z } from "zod";

import {
  EMBEDDING_MODEL, KEY, LIMITED_KEY, LOGIT_BIAS, LONG, MODEL, STORY, URL_BASE, WEATHER_SCHEMA, check, checkAbort,
  checkRetries, checkWeather, expect, expectError, run,
} from "./checks.mjs";

const make = (apiKey = KEY, settings = {}) => createOpenAICompatible({
  name: "ruvllm", baseURL: `${URL_BASE}/v1`, apiKey, includeUsage: true, supportsStructuredOutputs: true,
  ...settings,
});
const model = make()(MODEL);
const GREEDY = { model, temperature: 0, maxOutputTokens: 60, maxRetries: 0 };
const QUESTION = { prompt: "What is a glacier?" };
const WEATHER = {
  prompt: "What is the weather in Oslo, in celsius?",
  tools: {
    get_weather: tool({
      description: "Current weather of a city", inputSchema: jsonSchema(WEATHER_SCHEMA),
      execute: async () => ({ celsius: 7 }),
    }),
  },
};
const Mountain = z.object({ kind: z.enum(["hill", "peak"]), metres: z.number().int(), snow: z.boolean() });
const DESCRIBE = { prompt: "Describe a mountain as JSON.", output: Output.object({ schema: Mountain }) };

check("chat", async () => {
  const reply = await generateText({ ...GREEDY, ...QUESTION });
  expect(reply.text.length > 10 && reply.finishReason === "stop", reply.text);
});

check("usage", async () => {
  const { usage } = await generateText({ ...GREEDY, ...QUESTION });
  expect(usage.inputTokens > 0 && usage.outputTokens > 0, usage);
});

check("streaming", async () => {
  const stream = streamText({ ...GREEDY, ...QUESTION });
  let streamed = "";
  for await (const piece of stream.textStream) streamed += piece;
  expect(streamed === (await generateText({ ...GREEDY, ...QUESTION })).text, streamed);
});

check("stream-usage", async () => {
  const stream = streamText({ ...GREEDY, ...QUESTION });
  await stream.consumeStream();
  expect((await stream.usage).outputTokens > 0, await stream.usage);
});

check("stop", async () => {
  const whole = (await generateText({ ...GREEDY, ...QUESTION })).text;
  const word = whole.slice(5, 11);
  const reply = await generateText({ ...GREEDY, ...QUESTION, stopSequences: [word] });
  expect(reply.text === whole.slice(0, whole.indexOf(word)), reply.text);
});

check("seed", async () => {
  const sampled = () => generateText({ ...GREEDY, ...QUESTION, temperature: 1.5, seed: 3 });
  expect((await sampled()).text === (await sampled()).text, "another text");
});

check("tools", async () => {
  const reply = await generateText({ ...GREEDY, ...WEATHER, toolChoice: "required" });
  expect(reply.finishReason === "tool-calls", reply.finishReason);
  checkWeather(reply.toolCalls[0].input);
});

check("tool-choice", async () => {
  const forced = { type: "tool", toolName: "get_weather" };
  checkWeather((await generateText({ ...GREEDY, ...WEATHER, toolChoice: forced })).toolCalls[0].input);
});

check("tools-streaming", async () => {
  const stream = streamText({ ...GREEDY, ...WEATHER, toolChoice: "required" });
  await stream.consumeStream();
  checkWeather((await stream.toolCalls)[0].input);
});

check("tool-results", async () => {
  const reply = await generateText({ ...GREEDY, ...WEATHER, stopWhen: stepCountIs(3) });
  expect(reply.steps.length >= 1, reply.steps.length);
  const called = await generateText({ ...GREEDY, ...WEATHER, toolChoice: "required" });
  const messages = [{ role: "user", content: WEATHER.prompt }, ...called.response.messages];
  const after = await generateText({ ...GREEDY, tools: WEATHER.tools, messages });
  expect(after.text || after.toolCalls.length > 0, after.text);
});

check("json-schema", async () => {
  const { output } = await generateText({ ...GREEDY, ...DESCRIBE });
  expect(Number.isInteger(output.metres), output);
});

check("json-schema-streaming", async () => {
  const stream = streamText({ ...GREEDY, ...DESCRIBE });
  await stream.consumeStream();
  expect(typeof (await stream.output).snow === "boolean", await stream.output);
});

check("json-mode", async () => {
  const loose = make(KEY, { supportsStructuredOutputs: false })(MODEL);
  const reply = await generateText({ ...GREEDY, model: loose, prompt: "A digit as JSON.", output: Output.json() })
    .catch((error) => ({ text: error.text ?? String(error) }));
  expect(reply.text.trimStart().startsWith("{"), reply.text);
});

check("embeddings", async () => {
  const values = ["a river", "a lake"];
  const found = await embedMany({ model: make().embeddingModel(EMBEDDING_MODEL), values, maxRetries: 0 });
  expect(found.embeddings.length === 2 && found.embeddings[0].length > 1, found.usage);
});

check("completions", async () => {
  const found = await generateText({ ...GREEDY, model: make().completionModel(MODEL), prompt: "Once upon" });
  expect(found.text, found.text);
});

check("completions-streaming", async () => {
  const stream = streamText({ ...GREEDY, model: make().completionModel(MODEL), prompt: "Once upon" });
  await stream.consumeStream();
  expect(await stream.text, "no text");
});

check("abort", () => checkAbort(async () => {
  const controller = new AbortController();
  const stream = streamText({
    model, maxOutputTokens: LONG, prompt: STORY, maxRetries: 0, abortSignal: controller.signal,
    providerOptions: { ruvllm: { logit_bias: LOGIT_BIAS } }, onError: () => {},
  });
  return { chunks: stream.textStream[Symbol.asyncIterator](), abort: () => controller.abort() };
}));

check("retries", async () => {
  const limited = make(LIMITED_KEY)(MODEL);
  const isLimited = (found) => found instanceof APICallError && found.statusCode === 429;
  await checkRetries(isLimited, (maxRetries) =>
    generateText({ model: limited, ...QUESTION, maxOutputTokens: 1, maxRetries }));
});

check("error-key", async () => {
  const wrong = make("wrong")(MODEL);
  const error = await expectError(APICallError, () => generateText({ ...GREEDY, ...QUESTION, model: wrong }));
  expect(error.statusCode === 401, error);
});

check("error-model", async () => {
  const wrong = make()("no-such-model");
  const error = await expectError(APICallError, () => generateText({ ...GREEDY, ...QUESTION, model: wrong }));
  expect(error.statusCode === 404 && error.message.includes("no-such-model"), error.message);
});

await run("Vercel AI SDK", "ai");
