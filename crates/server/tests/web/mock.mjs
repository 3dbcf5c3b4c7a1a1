// A stand-in for `ruvllm serve`: the page's files, and API replies that depend on the request alone.
// `node mock.mjs [PORT]` serves until it is stopped; with MOCK_KEY set it asks for that key.

import { readFileSync, existsSync } from 'node:fs';
import { createServer } from 'node:http';
import { dirname, extname, join } from 'node:path';
import { fileURLToPath } from 'node:url';

const ASSETS = join(dirname(fileURLToPath(import.meta.url)), '../../src/web/assets');
const TYPES = { '.html': 'text/html; charset=utf-8', '.css': 'text/css; charset=utf-8', '.js': 'text/javascript; charset=utf-8', '.svg': 'image/svg+xml' };

/** The header of `crates/server/src/web/mod.rs`. */
const CSP = /CONTENT_SECURITY_POLICY: &str = "([^;]*(?:;[^"]*)?)";/s
  .exec(readFileSync(join(ASSETS, '../mod.rs'), 'utf8'))[1].replace(/\\\n\s*/g, '');

const MARKDOWN = `A **KV cache** keeps the keys and values of earlier tokens, so that each new token costs one forward pass instead of a pass over the whole text.

### Size per token

| precision | bytes per value | 1B model, 8k tokens |
|---|---:|---:|
| F16 | 2 | 256 MiB |
| 8 bit | 1 | 136 MiB |
| 4 bit | 0.5 | 72 MiB |

1. Old blocks move to a *lower-precision tier*.
2. Common prefixes are **shared** between requests.

\`\`\`rust
let bytes = 2 * layers * kv_heads * head_dim * tokens * size_of::<f16>();
\`\`\`

See [arXiv 2309.06180](https://arxiv.org/abs/2309.06180) for paging.`;

const LIVE_TREE = {
  tokens: 512, refs: 3, children: [
    { tokens: 128, refs: 2, children: [{ tokens: 64, refs: 1 }, { tokens: 32, refs: 0 }] },
    { tokens: 96, refs: 0, children: [{ tokens: 416, refs: 1 }] },
  ],
};

function live(tick) {
  const wave = Math.sin(tick / 5);
  return {
    time_ms: Date.now(), connections: 3,
    models: [{
      id: 'llama-1b', loaded: true, steps: 18000 + 40 * tick, running: 4, waiting: tick % 3, tokens_per_s: 118 + 22 * wave + 9 * Math.sin(tick * 1.7),
      prefill_tokens_per_s: 940 + 100 * wave, batch: Math.max(1, Math.round(6 + 4 * wave + 2 * Math.sin(tick * 2.3))),
      kv: { pages_total: 1024, pages_used: 560, page_bytes: 2 ** 21, tiers: [
        { name: 'hot', bytes: 420 * 2 ** 20, blocks: 1680 }, { name: 'warm', bytes: 300 * 2 ** 20, blocks: 2240 }, { name: 'cold', bytes: 180 * 2 ** 20, blocks: 2610 }] },
      prefix: { lookups: 412, hits: 346, hit_tokens: 181400, tree_tokens: 1248, nodes: 6, tree: LIVE_TREE },
      adapters: { hot: 3, warm: 12, cold: 40 }, speculation: { drafted: 5200, accepted: 3744 },
    }],
  };
}

const sse = (response, headers = {}) => response.writeHead(200, { 'content-type': 'text/event-stream', 'cache-control': 'no-store', ...headers });
const pause = (ms) => new Promise((resolve) => { setTimeout(resolve, ms); });

/** Parts of the reply to a request: deltas of the stream and the finish reason. */
function replyTo({ messages, tools, tool_choice: choice, response_format: format, adapters }) {
  const last = messages.at(-1);
  const words = (text) => text.split(/(?<=\s)/).map((content) => ({ content }));
  if (last.role === 'tool') return [words(`The tool says: ${last.content}.`), 'stop'];
  if (tools && choice !== 'none') {
    const call = { index: 0, id: 'call_8d2k1m4qz', type: 'function', function: { name: tools[0].function.name, arguments: '' } };
    const parts = ['{"city"', ':"Ro', 'me"}'].map((part) => ({ tool_calls: [{ index: 0, function: { arguments: part } }] }));
    return [[{ tool_calls: [call] }, ...parts], 'tool_calls'];
  }
  if (format) return [words('{"name": "Ada", "age": 36, "hobbies": ["mathematics", "flying machines"]}'), 'stop'];
  if (adapters) return [words(`Adapters: ${adapters.map(({ name, scale }) => `${name} ${scale}`).join(', ')}`), 'stop'];
  if (last.content.includes('reason')) return [[{ reasoning_content: 'Two and two ' }, { reasoning_content: 'are four.' }, ...words('The answer is 4.')], 'stop'];
  if (last.content.includes('long')) return [words('word '.repeat(2000)), 'length'];
  return [words(MARKDOWN), 'stop'];
}

async function bodyOf(request) {
  const parts = [];
  for await (const part of request) parts.push(part);
  return JSON.parse(Buffer.concat(parts));
}

/** A lesson: what it says is the reply's result. */
async function feedback(request, response, lessons) {
  const body = await bodyOf(request);
  lessons.push(body);
  await pause(50);
  if (body.correction === 'fail') return json(response, 404, { error: { message: 'no such request is recorded', type: 'not_found_error' } });
  json(response, 200, { object: 'feedback', model: body.model, adapter: 'learned', result: body.correction === 'noise' ? 'outlier' : 'learned' });
}

async function chat(request, response) {
  const body = await bodyOf(request);
  if (body.messages.at(-1).content?.includes('fail')) {
    return json(response, 503, { error: { message: 'The server is busy: 64 requests wait', type: 'server_error', param: null, code: null } }, { 'retry-after': '2' });
  }
  const [deltas, finish] = replyTo(body);
  const frame = (fields) => response.write(`data: ${JSON.stringify({ id: 'chatcmpl-1', object: 'chat.completion.chunk', created: 1, model: body.model, ...fields })}\n\n`);
  const choice = (delta, reason = null) => frame({ choices: [{ index: 0, delta, finish_reason: reason }] });
  sse(response, { 'x-request-id': `req_${body.messages.length}` });
  choice({ role: 'assistant', content: '' });
  for (const delta of deltas) {
    if (response.destroyed) return;
    choice(delta);
    await pause(8);
  }
  choice({}, finish);
  frame({ choices: [], usage: { prompt_tokens: 214, completion_tokens: deltas.length, total_tokens: 214 + deltas.length, prompt_tokens_details: { cached_tokens: 192 } } });
  response.end('data: [DONE]\n\n');
}

async function events(response) {
  sse(response);
  // A minute at once, so that charts are full.
  for (let tick = 0; !response.destroyed; tick += 1) {
    response.write(`data: ${JSON.stringify(live(tick))}\n\n`);
    if (tick > 60) await pause(1000);
  }
}

function json(response, status, value, headers = {}) {
  response.writeHead(status, { 'content-type': 'application/json', ...headers }).end(JSON.stringify(value));
}

function asset(path, response) {
  const file = join(ASSETS, path === '/' ? 'index.html' : path.replace(/^\/ui\//, ''));
  if (!existsSync(file) || !(path === '/' || /^\/ui\/[\w.]+$/.test(path))) return json(response, 404, { error: { message: 'No such path' } });
  response.writeHead(200, { 'content-type': TYPES[extname(file)], 'content-security-policy': CSP }).end(readFileSync(file));
}

/** The adapter that lessons have taught. */
const learned = (lessons) => (lessons.length ? [{ id: 'learned', object: 'learned_adapter', model: 'llama-1b', standing: 'learning', lessons: lessons.length }] : []);

const adapter = (id, tier, rank) => ({ id, object: 'adapter', model: 'llama-1b', tier, rank, bytes: 22e6 });

/** Starts the server; resolves to it when it listens. `lessons` has the bodies of feedback. */
export function start(port = 0, secret = process.env.MOCK_KEY) {
  const server = createServer((request, response) => {
    const path = request.url.split('?')[0];
    if (secret && path.startsWith('/v1/') && request.headers.authorization !== `Bearer ${secret}`) {
      return json(response, 401, { error: { message: 'A valid API key is required', type: 'authentication_error' } });
    }
    if (path === '/v1/chat/completions') return chat(request, response);
    if (path === '/v1/feedback') return feedback(request, response, server.lessons);
    if (path === '/v1/sona/adapters') return json(response, 200, { object: 'list', data: learned(server.lessons) });
    if (path === '/v1/live') return events(response);
    if (path === '/v1/models') return json(response, 200, { object: 'list', data: [{ id: 'llama-1b', object: 'model', loaded: true, feedback: true }, { id: 'qwen3-0.6b', object: 'model' }] });
    if (path === '/v1/adapters') return json(response, 200, { object: 'list', data: [adapter('support', 'hot', 16), adapter('legal-de', 'cold', 8)] });
    return asset(path, response);
  });
  server.lessons = [];
  return new Promise((resolve) => { server.listen(port, '127.0.0.1', () => resolve(server)); });
}

if (process.argv[1] === fileURLToPath(import.meta.url)) {
  const server = await start(Number(process.argv[2] ?? 8080));
  console.log(`http://127.0.0.1:${server.address().port}`);
}
