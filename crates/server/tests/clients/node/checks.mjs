// Checks of one client against a running server; outcomes go to stdout as JSON lines. The
// environment is that of ../python/checks.py.

import { readFileSync } from "node:fs";
import { createRequire } from "node:module";

const { env } = process;
export const URL_BASE = env.CLIENTS_URL.replace(/\/$/, "");
export const KEY = env.CLIENTS_KEY;
export const LIMITED_KEY = env.CLIENTS_LIMITED_KEY ?? "";
export const MODEL = env.CLIENTS_MODEL;
export const EMBEDDING_MODEL = env.CLIENTS_EMBEDDING_MODEL ?? MODEL;
const RUNNING = env.CLIENTS_RUNNING ?? "";
const GENERATED = env.CLIENTS_GENERATED ?? "";
const END_TOKENS = (env.CLIENTS_END_TOKENS ?? "0,2").split(",");

export const QUESTION = [{ role: "user", content: "What is a glacier?" }];
export const ASK_WEATHER = [{ role: "user", content: "What is the weather in Oslo, in celsius?" }];
export const STORY = "Tell a long story.";
// Tokens of a text that does not end before it is aborted.
export const LONG = 3500;
// Forbids the tokens that end a text, so that it is long enough to be aborted.
export const LOGIT_BIAS = Object.fromEntries(END_TOKENS.map((token) => [token, -100]));
export const WEATHER_SCHEMA = {
  type: "object",
  properties: {
    city: { type: "string", enum: ["Oslo", "Paris", "Rome"] },
    unit: { type: "string", enum: ["celsius", "fahrenheit"] },
  },
  required: ["city", "unit"],
  additionalProperties: false,
};

const SECONDS_PER_CHECK = 60;
const registered = [];

/** Registers a function as the check of a feature; it throws where the server fails. */
export function check(feature, run) {
  registered.push({ feature, run });
}

/** Runs the registered checks, or those whose features the command line names. */
export async function run(client, packageName) {
  const only = process.argv.slice(2);
  const version = packageVersion(packageName);
  for (const { feature, run } of registered) {
    if (only.length > 0 && !only.includes(feature)) continue;
    const outcome = { client, version, feature, outcome: "ok" };
    try {
      await limited(run());
    } catch (error) {
      outcome.outcome = "failed";
      outcome.reason = reason(error);
    }
    console.log(JSON.stringify(outcome));
  }
  // A check that ran too long may still hold a connection.
  process.exit(0);
}

function packageVersion(name) {
  const entry = createRequire(import.meta.url).resolve.paths(name)[0];
  return JSON.parse(readFileSync(`${entry}/${name}/package.json`, "utf8")).version;
}

function limited(promise) {
  const late = () => new Error(`no result within ${SECONDS_PER_CHECK} s`);
  let timer;
  const limit = new Promise((_, reject) => {
    timer = setTimeout(() => reject(late()), SECONDS_PER_CHECK * 1000);
  });
  return Promise.race([promise, limit]).finally(() => clearTimeout(timer));
}

/** Error text with the innermost line of the check that threw it. */
function reason(error) {
  const lines = String(error?.stack ?? "").split("\n").filter((line) => line.includes("-checks.mjs"));
  const where = lines.length > 0 ? ` at ${lines[0].replace(/.*\//, "").replace(")", "")}` : "";
  return `${error?.name}: ${error?.message}`.slice(0, 700) + where;
}

/** Fails the check unless the condition holds; `found` is shown. */
export function expect(condition, found) {
  if (!condition) throw new Error(`found ${JSON.stringify(found)}`.slice(0, 500));
}

/** Error of the class that the call must throw. */
export async function expectError(kind, call) {
  let found;
  try {
    found = await call();
  } catch (error) {
    if (error instanceof kind) return error;
    throw error;
  }
  throw new Error(`${kind.name} expected, found ${JSON.stringify(found)}`.slice(0, 500));
}

/** Arguments of a call of the weather tool that fulfil its schema. */
export function checkWeather(given) {
  const found = typeof given === "string" ? JSON.parse(given) : given;
  expect(Object.keys(found).length === 2, found);
  for (const [name, { enum: values }] of Object.entries(WEATHER_SCHEMA.properties)) {
    expect(values.includes(found[name]), found);
  }
}

/** Sum of a metric of /metrics over its labels. */
async function metric(name) {
  const reply = await fetch(`${URL_BASE}/metrics`, { headers: { authorization: `Bearer ${KEY}` } });
  expect(reply.status === 200, `/metrics: status ${reply.status}`);
  const lines = (await reply.text()).split("\n");
  const found = lines.filter((line) => line.startsWith(`${name} `) || line.startsWith(`${name}{`));
  return found.reduce((sum, line) => sum + Number(line.split(" ").at(-1)), 0);
}

/** Polls the gauge of running requests until `accept` takes its value. */
async function waitForRunning(accept) {
  const end = Date.now() + 20_000;
  for (let found = await metric(RUNNING); !accept(found); found = await metric(RUNNING)) {
    if (Date.now() > end) throw new Error(`${RUNNING} is still ${found} after 20 s`);
    await new Promise((resolve) => setTimeout(resolve, 20));
  }
}

/** Waits until the server computes nothing. */
export function idle() {
  return waitForRunning((count) => count === 0);
}

/**
 * `open` starts a long stream and returns its iterator and a function that aborts it. The text
 * would end by itself at last, so fewer tokens must have been generated than it has.
 */
export async function checkAbort(open) {
  await idle();
  const before = await metric(GENERATED);
  const { chunks, abort } = await open();
  for (let at = 0; at < 3; at += 1) await chunks.next();
  await waitForRunning((count) => count >= 1);
  abort();
  await idle();
  const generated = (await metric(GENERATED)) - before;
  expect(generated > 0 && generated < LONG, `${generated} tokens`);
}

/** `call(retries)` sends a small request as the limited tenant, with so many retries. */
export async function checkRetries(isLimited, call) {
  let error;
  for (let at = 0; at < 40 && error === undefined; at += 1) {
    try {
      await call(0);
    } catch (found) {
      if (!isLimited(found)) throw found;
      error = found;
    }
  }
  expect(error !== undefined, "40 requests and no 429");
  await call(6);
  return error;
}
