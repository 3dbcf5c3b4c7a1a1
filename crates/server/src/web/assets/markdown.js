// Markdown to DOM nodes. Text of a model becomes text nodes and checked link addresses, never HTML.

import { copy, h, iconButton } from './dom.js';

/** Nesting of lists, quotes and emphasis beyond which text stays plain. */
const MAX_DEPTH = 8;

const FENCE = /^ {0,3}(`{3,}|~{3,})\s*([^\s`]*)[^`]*$/;
const HEADING = /^(#{1,6})\s+(.*)$/;
const RULE = /^ {0,3}([-*_])(\s*\1){2,}\s*$/;
const QUOTE = /^ {0,3}> ?/;
const ITEM = /^(\s*)([-*+]|\d{1,9}[.)])(\s+|$)(.*)$/;
const TABLE_LINE = /^\s*\|?\s*:?-+:?\s*(\|\s*:?-+:?\s*)*\|?\s*$/;

/**
 * Shows `text` in `container`. Blocks that have not changed since the last call keep their nodes,
 * so a reply that grows costs only its last block, and a selection in it stays.
 */
export function showMarkdown(container, text) {
  const blocks = split(text);
  const shown = container.shown ?? [];
  let same = 0;
  while (same < shown.length && same < blocks.length && shown[same] === blocks[same].source) same += 1;
  while (container.childNodes.length > same) container.lastChild.remove();
  for (const block of blocks.slice(same)) container.append(block.render(0));
  container.shown = blocks.map((block) => block.source);
}

/** Divides a text into blocks: `source` identifies a block, `render` makes its node. */
function split(text) {
  const lines = text.split('\n');
  const blocks = [];
  let at = 0;
  while (at < lines.length) {
    if (!lines[at].trim()) { at += 1; continue; }
    const [end, render] = blockAt(lines, at);
    // An open fence at the end of a text that grows differs from the closed one.
    blocks.push({ source: lines.slice(at, end).join('\n') + (end === lines.length ? '' : '\n'), render });
    at = end;
  }
  return blocks;
}

/** End of the block that begins at a line, and the function that renders it. */
function blockAt(lines, at) {
  const line = lines[at];
  let match = FENCE.exec(line);
  if (match) return fence(lines, at, match[1], match[2]);
  match = HEADING.exec(line);
  if (match) {
    const title = match[2].replace(/#+$/, '').trim();
    return [at + 1, (depth) => h(`h${Math.min(match[1].length + 2, 6)}`, {}, inline(title, depth))];
  }
  if (RULE.test(line)) return [at + 1, () => h('hr')];
  if (QUOTE.test(line)) {
    const end = endWhere(lines, at, (next) => !QUOTE.test(next));
    const inner = lines.slice(at, end).map((next) => next.replace(QUOTE, '')).join('\n');
    return [end, (depth) => h('blockquote', {}, nested(inner, depth))];
  }
  if (ITEM.test(line)) return list(lines, at);
  if (line.includes('|') && TABLE_LINE.test(lines[at + 1] ?? '') && lines[at + 1].includes('-')) return table(lines, at);
  const end = endWhere(lines, at, (next) => !next.trim() || startsBlock(next));
  return [end, (depth) => h('p', {}, inline(lines.slice(at, end).join('\n').trim(), depth))];
}

const startsBlock = (line) =>
  FENCE.test(line) || HEADING.test(line) || RULE.test(line) || QUOTE.test(line) || ITEM.test(line);

/** Index of the first line after `at` for which `ends` holds. */
function endWhere(lines, at, ends) {
  let end = at + 1;
  while (end < lines.length && !ends(lines[end])) end += 1;
  return end;
}

/** Blocks of a text inside of another block. */
function nested(text, depth) {
  return depth < MAX_DEPTH ? split(text).map((block) => block.render(depth + 1)) : [text];
}

function fence(lines, at, mark, language) {
  const closes = (line) => line.trim().length >= mark.length && !line.trim().replaceAll(mark[0], '');
  const end = endWhere(lines, at, closes);
  const code = lines.slice(at + 1, end).join('\n');
  return [Math.min(end + 1, lines.length), () => codeBlock(code, language)];
}

/** Code with its language and a button that copies it. */
export function codeBlock(code, language = '') {
  const button = iconButton('copy', 'Copy code', () => copy(code, button));
  const head = h('div.code-head', {}, h('span', {}, language), button);
  return h('div.code-block', {}, head, h('pre', { tabindex: '0' }, h('code', {}, code)));
}

/** A list: items at the indentation of its first one, with everything indented further. */
function list(lines, at) {
  const first = ITEM.exec(lines[at]);
  const indent = first[1].length;
  const ordered = /\d/.test(first[2]);
  const items = [];
  let end = at;
  let blank = false;
  for (; end < lines.length; end += 1) {
    const line = lines[end];
    const match = ITEM.exec(line);
    if (match && match[1].length <= indent + 1 && !RULE.test(line)) {
      if (match[1].length < indent || /\d/.test(match[2]) !== ordered) break;
      items.push({ pad: match[1].length + match[2].length + 1, lines: [match[4]] });
    } else if (!line.trim()) {
      items.at(-1).lines.push('');
    } else if (line.search(/\S/) > indent + 1 || !(blank || startsBlock(line))) {
      items.at(-1).lines.push(line.slice(Math.min(items.at(-1).pad, line.search(/\S/))));
    } else break;
    blank = !line.trim();
  }
  const make = (depth) => items.map((item) => h('li', {}, tight(nested(item.lines.join('\n'), depth))));
  const start = ordered && parseInt(first[2], 10) !== 1 ? parseInt(first[2], 10) : null;
  return [end, (depth) => h(ordered ? 'ol' : 'ul', { start }, make(depth))];
}

/** Nodes of an item; the first paragraph's text stands without the paragraph. */
function tight(nodes) {
  const [first, ...rest] = nodes;
  return first?.tagName === 'P' ? [...first.childNodes, ...rest] : nodes;
}

function table(lines, at) {
  const end = endWhere(lines, at + 1, (line) => !line.trim() || !line.includes('|'));
  const cells = (line) => line.trim().replace(/^\||\|$/g, '').split(/(?<!\\)\|/).map((cell) => cell.trim().replaceAll('\\|', '|'));
  const align = cells(lines[at + 1]).map((cell) =>
    cell.endsWith(':') ? (cell.startsWith(':') ? 'center' : 'right') : null);
  const row = (line, tag, depth) =>
    h('tr', {}, cells(line).slice(0, align.length).map((cell, i) => h(tag, { align: align[i] }, inline(cell, depth))));
  return [end, (depth) => h('div.table', { tabindex: '0' }, h('table', {},
    h('thead', {}, row(lines[at], 'th', depth)),
    h('tbody', {}, lines.slice(at + 2, end).map((line) => row(line, 'td', depth)))))];
}

const EMPHASIS = { '***': ['strong', 'em'], '**': ['strong'], '__': ['strong'], '*': ['em'], '_': ['em'], '~~': ['del'] };

/** Inline markup of one block as nodes. */
function inline(text, depth) {
  if (depth > MAX_DEPTH) return [text];
  const nodes = [];
  const absent = new Set(); // Marks without a closing one further on: searched once, so time is linear.
  let plain = '';
  const push = (node) => { if (plain) nodes.push(plain); plain = ''; nodes.push(node); };
  let at = 0;
  while (at < text.length) {
    const found = spanAt(text, at, depth, absent);
    if (found?.node) push(found.node);
    else plain += found?.text ?? text[at];
    at = found?.end ?? at + 1;
  }
  if (plain) nodes.push(plain);
  return nodes;
}

/** The span that begins at a position: its node or plain text, and its end. */
function spanAt(text, at, depth, absent) {
  const rest = () => text.slice(at, at + 2048);
  const before = text[at - 1] ?? ' ';
  switch (text[at]) {
    case '\\':
      return /[!-/:-@[-`{-~]/.test(text[at + 1] ?? '') ? { text: text[at + 1], end: at + 2 } : null;
    case '`': {
      const mark = /^`+/.exec(rest())[0];
      const close = closing(text, mark, at + mark.length, absent);
      if (close < 0) return { text: mark, end: at + mark.length };
      return { node: h('code', {}, text.slice(at + mark.length, close).replace(/^ (.*) $/s, '$1')), end: close + mark.length };
    }
    case '*': case '_': case '~': return emphasis(text, at, before, depth, absent);
    case '[': case '!': {
      const match = /^!?\[([^\]\n]{0,500})\]\(\s*<?([^\s<>()]*(?:\([^\s()]*\)[^\s<>()]*)?)>?(?:\s+"[^"\n]*")?\s*\)/.exec(rest());
      const href = match && address(match[2]);
      return href ? { node: link(href, inline(match[1], depth + 1)), end: at + match[0].length } : null;
    }
    case '<': case 'h': {
      if (/\w/.test(before)) return null;
      const match = /^(<?)(https?:\/\/[^\s<>"`]+)(>?)/.exec(rest());
      if (!match || (match[1] && !match[3])) return null;
      const url = match[1] ? match[2] : match[2].replace(/[.,;:!?'*_~)\]]+$/, '');
      const href = address(url);
      return href ? { node: link(href, [url]), end: at + url.length + (match[1] ? 2 : 0) } : null;
    }
    default: return null;
  }
}

function emphasis(text, at, before, depth, absent) {
  const mark = /^(\*+|_+|~+)/.exec(text.slice(at))[0];
  const inside = text[at + mark.length] ?? ' ';
  if (!(mark in EMPHASIS) || /\s/.test(inside) || (mark[0] === '_' && /\w/.test(before))) return { text: mark, end: at + mark.length };
  const close = closing(text, mark, at + mark.length + 1, absent, mark[0]);
  if (close < 0) return { text: mark, end: at + mark.length };
  const inner = inline(text.slice(at + mark.length, close), depth + 1);
  const node = EMPHASIS[mark].reduceRight((content, tag) => [h(tag, {}, content)], inner)[0];
  return { node, end: close + mark.length };
}

/** Position of the closing mark, or -1. An emphasis closes after text, `_` also before none. */
function closing(text, mark, from, absent, kind) {
  if (absent.has(mark)) return -1;
  for (let at = text.indexOf(mark, from); at >= 0; at = text.indexOf(mark, at + 1)) {
    const after = text[at + mark.length];
    const alone = after !== mark[0] && text[at - 1] !== mark[0];
    const ends = !kind || (!/\s/.test(text[at - 1]) && !(kind === '_' && /\w/.test(after ?? ' ')));
    if (ends && (alone || (kind && mark.length > 1))) return at;
  }
  absent.add(mark);
  return -1;
}

/** The address if it is of http or https, else null. */
function address(text) {
  try {
    const url = new URL(text);
    return url.protocol === 'http:' || url.protocol === 'https:' ? url.href : null;
  } catch {
    return null;
  }
}

const link = (href, label) => h('a', { href, target: '_blank', rel: 'noopener noreferrer' }, label);
