// One exchange with the model: the request from conversation and settings, the reply from its stream.

import { call, events } from './api.js';
import { parseSchema, parseTools } from './schema.js';

/** Text of a reply without the reasoning that some models write into it, and that reasoning. */
export function splitReasoning(text) {
  const match = /^\s*<think>(.*?)(<\/think>|$)/s.exec(text);
  return match ? { reasoning: match[1].trim(), answer: text.slice(match[0].length).trimStart() } : { reasoning: '', answer: text };
}

/** Calls of the last reply that have no result yet. */
export function openCalls(chat) {
  const at = chat.messages.findLastIndex((message) => message.role !== 'tool');
  const answered = new Set(chat.messages.slice(at + 1).map((message) => message.tool_call_id));
  return (chat.messages[at]?.tool_calls ?? []).filter((call) => !answered.has(call.id));
}

/** Messages in the form of the API. Reasoning is not sent back; a call without result gets an error. */
function wireMessages(chat, system) {
  const wire = system.trim() ? [{ role: 'system', content: system }] : [];
  let open = [];
  const close = () => {
    for (const call of open) wire.push({ role: 'tool', tool_call_id: call.id, content: '{"error": "not run"}' });
    open = [];
  };
  for (const message of chat.messages) {
    if (message.role === 'tool') {
      open = open.filter((call) => call.id !== message.tool_call_id);
      wire.push({ role: 'tool', tool_call_id: message.tool_call_id, content: message.content });
      continue;
    }
    close();
    if (message.role === 'user') wire.push({ role: 'user', content: message.content });
    else if (message.tool_calls?.length) {
      wire.push({ role: 'assistant', content: splitReasoning(message.content).answer || null, tool_calls: message.tool_calls });
      open = message.tool_calls;
    } else if (message.content) wire.push({ role: 'assistant', content: splitReasoning(message.content).answer });
  }
  close();
  return wire;
}

/** Body of the request for the next reply. */
export function requestBody(chat, settings) {
  const body = { messages: wireMessages(chat, settings.system), stream: true, stream_options: { include_usage: true } };
  if (settings.model) body.model = settings.model;
  Object.assign(body, settings.sampling);
  const adapters = Object.entries(settings.adapters).map(([name, scale]) => ({ name, scale }));
  if (adapters.length) body.adapters = adapters;
  const { tools } = settings.tools.on ? parseTools(settings.tools.text) : {};
  if (tools) {
    const { choice } = settings.tools;
    const plain = ['auto', 'none', 'required'].includes(choice);
    const known = plain || tools.some((tool) => tool.function.name === choice);
    // A forced choice holds until the model has called: it must be able to answer with the result.
    const forced = choice !== 'none' && chat.messages.at(-1)?.role === 'tool';
    body.tools = tools;
    body.tool_choice = !known || forced ? 'auto' : plain ? choice : { type: 'function', function: { name: choice } };
  }
  const { schema } = settings.schema.on ? parseSchema(settings.schema.text) : {};
  if (schema) body.response_format = { type: 'json_schema', json_schema: { name: settings.schema.name || 'reply', schema, strict: true } };
  return body;
}

/** A reply before its first event. */
export const emptyReply = (body) => ({
  role: 'assistant', content: '', model: body.model, schema: body.response_format?.json_schema.schema,
});

/** Requests a reply and fills `reply` as it arrives; `onChange` is called for each event. */
export async function generate(body, reply, signal, onChange) {
  const start = performance.now();
  let first = null;
  try {
    const response = await call('/v1/chat/completions', { body, signal });
    reply.request = response.headers.get('x-request-id');
    for await (const event of events(response)) {
      if (add(reply, event)) first ??= performance.now();
      onChange();
    }
    if (!reply.finish) throw new Error('The stream ended before the reply was complete');
  } catch (error) {
    if (error.name === 'AbortError') reply.finish = 'stopped';
    else throw error;
  } finally {
    if (first !== null) reply.timing = { ttft: first - start, decode: performance.now() - first };
    // Arguments that were cut cannot be answered, nor sent back.
    if (!['stop', 'tool_calls'].includes(reply.finish)) delete reply.tool_calls;
  }
}

/** Adds an event to a reply; true if it brought text, reasoning or a part of a call. */
function add(reply, event) {
  if (event.model) reply.model = event.model;
  if (event.usage) reply.usage = event.usage;
  const choice = event.choices?.[0];
  if (!choice) return false;
  if (choice.finish_reason) reply.finish = choice.finish_reason;
  const { content, reasoning_content, reasoning, tool_calls } = choice.delta ?? {};
  reply.content += content ?? '';
  const thought = reasoning_content ?? reasoning;
  if (thought) reply.reasoning = (reply.reasoning ?? '') + thought;
  for (const part of tool_calls ?? []) {
    reply.tool_calls ??= [];
    const call = (reply.tool_calls[part.index ?? 0] ??= { id: '', type: 'function', function: { name: '', arguments: '' } });
    call.id ||= part.id ?? '';
    call.function.name += part.function?.name ?? '';
    call.function.arguments += part.function?.arguments ?? '';
  }
  return Boolean(content || thought || tool_calls?.length);
}
