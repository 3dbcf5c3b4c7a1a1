// The live view: figures of each model from the event stream `/v1/live`, one event per second.

import { call, events } from './api.js';
import { $, h, svg } from './dom.js';

/** Seconds of history in the charts. */
const HISTORY = 60;

/** Longest pause before a new connection, in milliseconds. */
const MAX_PAUSE = 15000;

/** Nodes of the prefix tree that are shown. */
const MAX_NODES = 200;

const views = new Map();
let connection = null;

/** Connects while `wanted`; a hidden view costs the server nothing. */
export function watch(wanted) {
  if (!wanted) {
    connection?.abort();
    connection = null;
  } else if (!connection) {
    connection = new AbortController();
    follow(connection.signal);
  }
}

async function follow(signal) {
  let pause = 1000;
  while (!signal.aborted) {
    try {
      for await (const event of events(await call('/v1/live', { signal }))) {
        show(event);
        pause = 1000;
      }
    } catch (error) {
      if (signal.aborted) return;
      notice(error.status === 404 ? 'This server has no live view.' : `${error.message}.`);
      if ([401, 403, 404].includes(error.status)) {
        connection = null; // The next change of the view, or of the key, tries again.
        return;
      }
    }
    await new Promise((resolve) => setTimeout(resolve, pause));
    pause = Math.min(pause * 2, MAX_PAUSE);
  }
}

function notice(text) {
  views.clear();
  $('live').replaceChildren(h('p.note', {}, text));
}

/** Shows an event; sections appear in its order. */
function show({ models = [], connections }) {
  const ids = models.map((model) => model.id);
  for (const id of views.keys()) if (!ids.includes(id)) views.delete(id);
  const sections = models.map((model) => {
    if (!views.has(model.id)) views.set(model.id, new ModelView(model.id));
    return views.get(model.id).show(model);
  });
  const foot = connections != null && h('p.note', {}, `${number(connections)} ${connections === 1 ? 'connection' : 'connections'}`);
  const now = [...sections, foot].filter(Boolean);
  // Sections that are there already stay where they are, with the focus in them.
  for (const node of [...$('live').children]) if (!now.includes(node)) node.remove();
  $('live').append(...now.filter((node) => !node.isConnected));
}

/** Section of one model. */
class ModelView {
  constructor(id) {
    this.rates = [];
    this.batches = [];
    this.state = h('span.note');
    this.body = h('div');
    this.tree = h('details.tree', { hidden: true }, h('summary', {}, 'Prefix tree'), h('div'));
    this.node = h('section.live', { 'aria-label': id }, h('header.row', {}, h('h3.grow', {}, id), this.state), this.body, this.tree);
  }

  show(model) {
    push(this.rates, model.tokens_per_s);
    push(this.batches, Array.isArray(model.batch) ? model.batch.at(-1) : model.batch);
    this.state.textContent = stateOf(model);
    this.body.replaceChildren(...[this.speed(model), this.batch(), kv(model.kv), prefix(model.prefix), counts(model)].filter(Boolean));
    this.showTree(model.prefix?.tree);
    return this.node;
  }

  speed({ tokens_per_s: rate, prefill_tokens_per_s: prefill }) {
    if (rate == null) return null;
    return h('div.block', {}, h('div.row.base', {}, h('span.big', {}, number(rate)), h('span.note.grow', {}, 'tokens/s'),
      prefill != null && h('span.note', {}, `prefill ${number(prefill)}/s`)), sparkline(this.rates));
  }

  batch() {
    const now = this.batches.at(-1);
    if (now == null) return null;
    return h('div.block', {}, h('div.row', {}, h('span.grow', {}, 'Batch'), h('span.num', {}, number(now))), bars(this.batches));
  }

  showTree(tree) {
    this.tree.hidden = !tree;
    const text = tree ? JSON.stringify(tree) : '';
    if (text === this.treeText) return;
    this.treeText = text;
    const left = { nodes: MAX_NODES };
    this.tree.lastChild.replaceChildren(...(tree ? [branch([tree].flat(), left)] : []));
    if (left.nodes < 0) this.tree.lastChild.append(h('p.note', {}, `The first ${MAX_NODES} nodes`));
  }
}

function push(history, value) {
  history.push(typeof value === 'number' ? value : null);
  if (history.length > HISTORY) history.shift();
}

function stateOf({ loaded, running, waiting, steps }) {
  if (loaded === false) return 'not loaded';
  const parts = [running != null && `${number(running)} running`, waiting > 0 && `${number(waiting)} waiting`, steps != null && `${number(steps)} steps`];
  return parts.filter(Boolean).join(' · ');
}

/** Line of the last minute, scaled to its maximum. */
function sparkline(values) {
  const top = Math.max(1, ...values);
  const offset = HISTORY - values.length;
  const points = values.map((value, i) => `${offset + i},${(31 - ((value ?? 0) / top) * 30).toFixed(2)}`);
  const chart = svg('svg', { viewBox: `0 0 ${HISTORY - 1} 32`, preserveAspectRatio: 'none', class: 'chart', role: 'img',
    'aria-label': `Tokens per second in the last minute, at most ${number(top)}` });
  if (points.length > 1) {
    chart.append(svg('polygon', { points: `${offset},32 ${points.join(' ')} ${HISTORY - 1},32` }), svg('polyline', { points: points.join(' ') }));
  }
  return chart;
}

/** Bars of the last minute, scaled to their maximum. */
function bars(values) {
  const top = Math.max(1, ...values);
  const chart = svg('svg', { viewBox: `0 0 ${HISTORY} 20`, preserveAspectRatio: 'none', class: 'chart bars', role: 'img',
    'aria-label': `Sequences per step in the last minute, at most ${number(top)}` });
  for (const [i, value] of values.entries()) {
    const height = ((value ?? 0) / top) * 20;
    if (height > 0) chart.append(svg('rect', { x: HISTORY - values.length + i + 0.15, y: 20 - height, width: 0.7, height }));
  }
  return chart;
}

/** KV cache: bytes of each tier as parts of the budget. */
function kv(cache) {
  if (!cache) return null;
  const { pages_total: total, pages_used: used, page_bytes: page = 0, tiers = [] } = cache;
  const budget = total * page || tiers.reduce((sum, tier) => sum + (tier.bytes ?? 0), 0);
  const bar = h('div.stack', { role: 'img', 'aria-label': `KV cache: ${tiers.map((tier) => `${tier.name} ${bytes(tier.bytes)}`).join(', ')}` });
  const legend = h('dl.legend');
  for (const [i, tier] of tiers.entries()) {
    const part = h(`span.tier${Math.min(i, 3)}`);
    part.style.width = `${budget ? (100 * (tier.bytes ?? 0)) / budget : 0}%`;
    bar.append(part);
    legend.append(h('dt', {}, h(`i.tier${Math.min(i, 3)}`), tier.name), h('dd', {}, bytes(tier.bytes), tier.blocks != null && h('span.note', {}, `${number(tier.blocks)} blocks`)));
  }
  const share = total ? `${bytes(used * page)} of ${bytes(total * page)}` : bytes(budget);
  return h('div.block', {}, h('div.row', {}, h('span.grow', {}, 'KV cache'), h('span.num', {}, share)), bar, legend);
}

function prefix(cache) {
  if (!cache) return null;
  const { lookups, hits, hit_tokens: tokens, tree_tokens: held, nodes } = cache;
  const rate = lookups ? `${Math.round((100 * hits) / lookups)} % hits` : '';
  return h('div.block', {}, h('div.row', {}, h('span.grow', {}, 'Prefix cache'), h('span.num', {}, rate)),
    figures([['lookups', lookups], ['tokens served', tokens], ['tokens held', held], ['nodes', nodes]]));
}

function counts({ adapters, speculation }) {
  const drafts = speculation?.drafted ? Math.round((100 * speculation.accepted) / speculation.drafted) : null;
  const blocks = [];
  if (adapters) blocks.push(h('div.block', {}, h('div', {}, 'Adapters'), figures([['hot', adapters.hot], ['warm', adapters.warm], ['cold', adapters.cold]])));
  if (drafts !== null) {
    blocks.push(h('div.block', {}, h('div.row', {}, h('span.grow', {}, 'Speculation'), h('span.num', {}, `${drafts} % accepted`)),
      figures([['drafted', speculation.drafted], ['accepted', speculation.accepted]])));
  }
  return blocks.length ? h('div', {}, blocks) : null;
}

function figures(pairs) {
  const known = pairs.filter(([, value]) => value != null);
  return h('dl.figures', {}, known.map(([label, value]) => h('div', {}, h('dd', {}, number(value)), h('dt', {}, label))));
}

/** Nodes of the prefix tree; the bar of a node is its number of tokens. */
function branch(nodes, left) {
  const items = [];
  for (const node of nodes) {
    left.nodes -= 1;
    if (left.nodes < 0) break;
    const bar = h('i');
    bar.style.width = `${Math.min(100, 6 * Math.log2(1 + (node.tokens ?? 0)))}px`;
    const uses = node.refs ? ` · ${number(node.refs)} in use` : '';
    const children = node.children?.length ? branch(node.children, left) : null;
    items.push(h('li', {}, h('div.row', {}, bar, h('span.note', {}, `${number(node.tokens ?? 0)} tokens${uses}`)), children));
  }
  return h('ul', {}, items);
}

const number = (value) => value.toLocaleString('en', { maximumFractionDigits: value < 100 ? 1 : 0 });

function bytes(value = 0) {
  const units = ['B', 'KiB', 'MiB', 'GiB', 'TiB'];
  const unit = value > 0 ? Math.min(Math.floor(Math.log2(value) / 10), 4) : 0;
  return `${number(value / 1024 ** unit)} ${units[unit]}`;
}
