// The messages of a conversation as nodes: text, reasoning, tool calls, JSON replies, actions.

import { $, copy, h, iconButton } from './dom.js';
import { canTeach, feedback } from './feedback.js';
import { codeBlock, showMarkdown } from './markdown.js';
import { mismatch, parse } from './schema.js';
import { openCalls, splitReasoning } from './session.js';

/** Distance from the end, in pixels, within which the view follows new text. */
const FOLLOW = 80;

/** Shows a whole conversation; `act` has the actions `edit`, `regenerate`, `answer`, `taught`. */
export function showChat(chat, act, running) {
  const open = running ? [] : openCalls(chat);
  const last = chat.messages.findLastIndex((message) => message.role === 'assistant');
  const nodes = chat.messages.map((message, index) => {
    if (message.role === 'user') return userNode(message, index, act);
    if (message.role !== 'assistant') return null;
    const node = h('article.assistant', { 'aria-label': 'Reply' });
    showReply(node, message, { chat, index, open, act, isLast: index === last, running: running && index === last });
    return node;
  });
  $('messages').replaceChildren(...nodes.filter(Boolean));
  if (!chat.messages.length) $('messages').append(welcome(act));
}

/** Shows the last reply anew while it grows, and follows it if the end is in view. */
export function growReply(chat, act) {
  const log = $('log');
  const follows = log.scrollHeight - log.scrollTop - log.clientHeight < FOLLOW;
  const index = chat.messages.length - 1;
  showReply($('messages').lastElementChild, chat.messages[index], { chat, index, open: [], act, running: true });
  if (follows) scrollToEnd();
}

export const scrollToEnd = () => { $('log').scrollTop = $('log').scrollHeight; };

function welcome(act) {
  const examples = ['Explain a KV cache in three sentences.', 'Write a haiku about rain.', 'Compare TCP and UDP in a table.'];
  const buttons = examples.map((text) => h('button.example', { type: 'button', onclick: () => act.suggest(text) }, text));
  return h('div.welcome', {}, h('h2', {}, 'What do you want to know?'), h('div', {}, buttons));
}

function userNode(message, index, act) {
  const button = iconButton('copy', 'Copy message', () => copy(message.content, button));
  const node = h('article.user', { 'aria-label': 'Your message' });
  const edit = iconButton('edit', 'Edit message', () => editMessage(node, message, index, act));
  node.append(h('div.text', {}, message.content), h('div.actions', {}, button, edit));
  return node;
}

/** Replaces a message by a field; sending it drops the messages after it. */
function editMessage(node, message, index, act) {
  const field = h('textarea', { rows: 3, 'aria-label': 'Edit message' }, message.content);
  const send = () => field.value.trim() && act.edit(index, field.value);
  field.addEventListener('keydown', (event) => {
    if (event.key === 'Enter' && (event.ctrlKey || event.metaKey)) send();
    else if (event.key === 'Escape') act.show();
    else return;
    event.preventDefault();
    event.stopPropagation();
  });
  const note = h('span.note.grow', {}, 'Later messages are removed');
  node.replaceChildren(field, h('div.row', {}, note,
    h('button', { type: 'button', onclick: () => act.show() }, 'Cancel'),
    h('button.primary', { type: 'button', onclick: send }, 'Send')));
  field.focus();
  field.setSelectionRange(field.value.length, field.value.length);
  node.scrollIntoView({ block: 'nearest' });
}

/** Fills the node of a reply. Parts that exist are changed in place, so that open ones stay open. */
function showReply(node, message, context) {
  if (!node.parts) {
    node.parts = { thought: h('details.thought', { hidden: true }, h('summary'), h('div.text')), body: h('div.markdown'), calls: h('div'), foot: h('footer') };
    node.append(...Object.values(node.parts));
  }
  const { thought, body, calls, foot } = node.parts;
  const { reasoning, answer } = splitReasoning(message.content);
  const thinking = message.reasoning || reasoning;
  thought.hidden = !thinking;
  thought.firstChild.textContent = context.running && !answer ? 'Reasoning…' : 'Reasoning';
  thought.lastChild.textContent = thinking;
  node.setAttribute('aria-busy', String(Boolean(context.running)));
  node.classList.toggle('waiting', Boolean(context.running && !answer && !thinking && !message.tool_calls));
  if (message.schema) body.replaceChildren(...jsonReply(answer, message.schema, context.running));
  else showMarkdown(body, answer);
  calls.replaceChildren(...callCards(message, context));
  foot.replaceChildren(...footer(message, answer, context));
}

/** A reply in JSON mode: pretty-printed, with its validity. */
function jsonReply(text, schema, running) {
  if (!text) return [];
  if (running) return [codeBlock(text, 'json')];
  const { value, error } = parse(text);
  const wrong = error ?? mismatch(value, schema);
  const badge = h(`p.badge.${wrong ? 'bad' : 'good'}`, {}, wrong ? wrong : 'Valid: matches the schema');
  return [codeBlock(error ? text : JSON.stringify(value, null, 2), 'json'), badge];
}

/** Cards of a reply's tool calls: arguments, and the result or a field for it. */
function callCards(message, { chat, index, open, act }) {
  const results = new Map();
  for (let at = index + 1; chat.messages[at]?.role === 'tool'; at += 1) results.set(chat.messages[at].tool_call_id, chat.messages[at].content);
  const fields = new Map();
  const cards = (message.tool_calls ?? []).filter(Boolean).map((call) => {
    const { value, error } = parse(call.function.arguments || '{}');
    const title = h('header', {}, h('span.note', {}, 'Tool call'), h('strong', {}, call.function.name), h('code.note', {}, call.id));
    const card = h('section.card', { 'aria-label': `Tool call ${call.function.name}` }, title,
      codeBlock(error ? call.function.arguments : JSON.stringify(value, null, 2), 'arguments'));
    if (results.has(call.id)) card.append(codeBlock(results.get(call.id), 'result'));
    else if (open.includes(call)) {
      const field = h('textarea.code', { rows: 2, 'aria-label': `Result of ${call.function.name}`, placeholder: 'Result, as text or JSON' });
      fields.set(call.id, field);
      card.append(field);
    }
    return card;
  });
  if (fields.size) {
    const send = () => act.answer([...fields].map(([id, field]) => ({ role: 'tool', tool_call_id: id, content: field.value })));
    for (const field of fields.values()) field.addEventListener('keydown', (event) => {
      if (event.key === 'Enter' && (event.ctrlKey || event.metaKey)) { event.preventDefault(); send(); }
    });
    cards.push(h('div.row.end', {}, h('button.primary', { type: 'button', onclick: send }, fields.size > 1 ? 'Send results' : 'Send result')));
  }
  return cards;
}

/** Error, figures and actions under a reply. */
function footer(message, answer, { chat, act, running, isLast }) {
  if (running) return [];
  const parts = [];
  if (message.error) parts.push(h('p.badge.bad', { role: 'alert' }, message.error));
  const copyButton = iconButton('copy', 'Copy reply', () => copy(answer, copyButton));
  const lesson = answer && canTeach(message) ? feedback(message, answer, (isShown) => act.taught(chat, isShown)) : null;
  parts.push(h('div.actions', {}, answer && copyButton,
    isLast && iconButton('redo', message.error ? 'Try again' : 'Regenerate', () => act.regenerate()),
    lesson?.buttons ?? [], h('span.note', {}, figures(message)), lesson?.note));
  if (lesson) parts.push(lesson.form);
  return parts;
}

/** Figures of a reply, as far as they are known. */
function figures({ model, usage, timing, finish }) {
  const parts = [model];
  const count = usage?.completion_tokens;
  if (count) parts.push(`${count} tokens`);
  if (count > 1 && timing?.decode > 0) parts.push(`${(((count - 1) * 1000) / timing.decode).toFixed(1)} tokens/s`);
  if (timing) parts.push(`TTFT ${timing.ttft < 1000 ? `${timing.ttft.toFixed(0)} ms` : `${(timing.ttft / 1000).toFixed(1)} s`}`);
  const cached = usage?.prompt_tokens_details?.cached_tokens;
  if (cached) parts.push(`${cached} of ${usage.prompt_tokens} prompt tokens cached`);
  if (finish === 'stopped') parts.push('stopped');
  if (finish === 'length') parts.push('cut at the token limit');
  return parts.filter(Boolean).join(' · ');
}
