// The server's API: requests with the key, server-sent events, errors.

const KEY = 'ruvllm.key';

/** The API key: of this tab, or kept in this browser if the user asked for it. */
export const key = {
  get: () => sessionStorage.getItem(KEY) ?? localStorage.getItem(KEY),
  set(value, keep) {
    key.forget();
    (keep ? localStorage : sessionStorage).setItem(KEY, value);
  },
  forget() {
    sessionStorage.removeItem(KEY);
    localStorage.removeItem(KEY);
  },
};

/** An error reply, or a connection that failed (`status` 0). */
export class ApiError extends Error {
  constructor(status, message, retryAfter) {
    super(message);
    this.status = status;
    this.retryAfter = retryAfter;
  }
}

/** Sends a request and returns the response; throws [`ApiError`] unless its status is a success. */
export async function call(path, { body, signal } = {}) {
  const headers = {};
  if (key.get()) headers.authorization = `Bearer ${key.get()}`;
  if (body) headers['content-type'] = 'application/json';
  const options = { method: body ? 'POST' : 'GET', headers, body: body && JSON.stringify(body), signal, cache: 'no-store' };
  let response;
  try {
    response = await fetch(path, options);
  } catch (error) {
    if (error.name === 'AbortError') throw error;
    throw new ApiError(0, 'No connection to the server');
  }
  if (response.ok) return response;
  const text = await response.text().catch(() => '');
  throw new ApiError(response.status, messageOf(text) ?? `The server answered with status ${response.status}`,
    response.headers.get('retry-after'));
}

/** Message of an error body, or null. */
function messageOf(text) {
  try {
    const message = JSON.parse(text).error?.message;
    return typeof message === 'string' ? message : null;
  } catch {
    return null;
  }
}

/** `data` of a list endpoint; empty if the server does not have it. */
export async function list(path) {
  try {
    const { data } = await (await call(path)).json();
    return Array.isArray(data) ? data : [];
  } catch (error) {
    if ([403, 404, 405, 501].includes(error.status)) return [];
    throw error;
  }
}

/** Events of a stream, parsed; ends at `[DONE]` or with the body. Throws errors that are sent as events. */
export async function* events(response) {
  for await (const data of dataOf(response.body)) {
    if (data === '[DONE]') return;
    const event = JSON.parse(data);
    if (event.error) throw new ApiError(0, event.error.message ?? 'The server ended the stream with an error');
    yield event;
  }
}

/** `data` fields of a stream of server-sent events. */
async function* dataOf(body) {
  const reader = body.pipeThrough(new TextDecoderStream()).getReader();
  let buffer = '';
  let data = [];
  try {
    for (;;) {
      const { value, done } = await reader.read();
      if (done) return;
      buffer += value;
      const lines = buffer.split('\n');
      buffer = lines.pop();
      for (const line of lines.map((text) => text.replace(/\r$/, ''))) {
        if (line.startsWith('data:')) data.push(line.slice(line[5] === ' ' ? 6 : 5));
        else if (!line && data.length) {
          yield data.join('\n');
          data = [];
        }
      }
    }
  } finally {
    reader.cancel().catch(() => {});
  }
}
