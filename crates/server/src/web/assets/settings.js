// The settings panel: model, system prompt, sampling, adapters, tools, JSON schema.

import { list } from './api.js';
import { $, h } from './dom.js';
import { teachable } from './feedback.js';
import { parseSchema, parseTools } from './schema.js';

/** Sampling fields of the request; an empty one leaves the server's default. */
const SAMPLING = [
  ['temperature', 'Temperature', { min: 0, max: 5, step: 0.05 }],
  ['top_p', 'Top-p', { min: 0, max: 1, step: 0.01 }],
  ['top_k', 'Top-k', { min: 0, max: 100000, step: 1 }],
  ['min_p', 'Min-p', { min: 0, max: 1, step: 0.01 }],
  ['repeat_penalty', 'Repeat penalty', { min: 0, max: 5, step: 0.05 }],
  ['seed', 'Seed', { min: 0, max: Number.MAX_SAFE_INTEGER, step: 1 }],
  ['max_tokens', 'Max tokens', { min: 1, max: 10000000, step: 1 }],
];

const TOOLS_EXAMPLE = [{
  type: 'function',
  function: {
    name: 'get_weather',
    description: 'Get the weather in a city',
    parameters: { type: 'object', properties: { city: { type: 'string' } }, required: ['city'] },
  },
}];

const SCHEMA_EXAMPLE = {
  type: 'object',
  properties: { name: { type: 'string' }, age: { type: 'integer', minimum: 0 }, hobbies: { type: 'array', items: { type: 'string' } } },
  required: ['name', 'age', 'hobbies'],
  additionalProperties: false,
};

/** Connects the fields with `settings`; `changed` is called after each change. */
export function bindSettings(settings, changed) {
  bindText('system', settings, 'system', changed);
  $('sampling').replaceChildren(...SAMPLING.map(([name, label, limits]) => {
    const field = h('input', { type: 'number', id: `sampling-${name}`, placeholder: 'default', ...limits });
    field.value = settings.sampling[name] ?? '';
    field.addEventListener('change', () => {
      const value = field.value === '' ? null : Number(field.value);
      field.setAttribute('aria-invalid', String(!field.validity.valid));
      if (value === null || !field.validity.valid) delete settings.sampling[name];
      else settings.sampling[name] = value;
      changed();
    });
    return h('label', {}, label, field);
  }));
  bindEditor('tools', settings.tools, TOOLS_EXAMPLE, (text) => {
    const { tools, error } = parseTools(text);
    showChoices(settings.tools, tools ?? []);
    return { error, note: tools && countOf(tools) };
  }, changed);
  $('tool-choice').addEventListener('change', (event) => { settings.tools.choice = event.target.value; changed(); });
  bindText('schema-name', settings.schema, 'name', changed);
  bindEditor('schema', settings.schema, SCHEMA_EXAMPLE, (text) => ({ ...parseSchema(text), note: 'A JSON schema' }), changed);
  $('model').addEventListener('change', (event) => { settings.model = event.target.value; changed(); });
}

function bindText(id, target, name, changed) {
  $(id).value = target[name];
  $(id).addEventListener('input', () => { target[name] = $(id).value; changed(); });
}

/** A switch with a text that must be valid for it; `check` returns an error or a note. */
function bindEditor(id, part, example, check, changed) {
  const [field, box, note] = [$(id), $(`${id}-on`), $(`${id}-note`)];
  const update = () => {
    const { error, note: good } = part.text.trim() ? check(part.text) : { error: part.on ? 'Empty' : '' };
    note.textContent = error ?? good;
    note.classList.toggle('bad', Boolean(error));
    field.setAttribute('aria-invalid', String(Boolean(error)));
    changed();
  };
  field.value = part.text;
  box.checked = part.on;
  field.addEventListener('input', () => { part.text = field.value; update(); });
  box.addEventListener('change', () => { part.on = box.checked; update(); });
  $(`${id}-example`).addEventListener('click', () => {
    field.value = part.text = JSON.stringify(example, null, 2);
    box.checked = part.on = true;
    update();
  });
  update();
}

function showChoices(part, tools) {
  const names = ['auto', 'none', 'required', ...tools.map((tool) => tool.function.name)];
  $('tool-choice').replaceChildren(...names.map((name) => h('option', { value: name, selected: name === part.choice }, name)));
}

/** Loads the server's models and adapters into their lists. */
export async function loadLists(settings, changed) {
  const models = await list('/v1/models');
  teachable.clear();
  for (const model of models) if (model.feedback) teachable.add(model.id);
  if (!models.some((model) => model.id === settings.model)) settings.model = models[0]?.id ?? '';
  const options = models.map(({ id }) => h('option', { value: id, selected: id === settings.model }, id));
  $('model').replaceChildren(...options);
  $('model').hidden = !models.length;
  const adapters = [...await list('/v1/adapters'), ...await learnedAdapters(models.find((model) => model.id === settings.model))];
  const known = new Set(adapters.map((adapter) => adapter.id));
  for (const name of Object.keys(settings.adapters)) if (!known.has(name)) delete settings.adapters[name];
  $('adapters').hidden = !adapters.length;
  $('adapter-list').replaceChildren(...adapters.map((adapter) => adapterRow(adapter, settings.adapters, changed)));
  changed();
}

/** Adapters that the caller has taught, of a model in memory. */
async function learnedAdapters(model) {
  if (!model?.feedback || !model.loaded) return [];
  const learned = await list(`/v1/sona/adapters?model=${encodeURIComponent(model.id)}`);
  const state = ({ standing, lessons }) => (standing === 'learning' ? `${lessons} ${lessons === 1 ? 'lesson' : 'lessons'}` : standing);
  return learned.map((adapter) => ({ id: adapter.id, model: adapter.model, tier: state(adapter) }));
}

/** An adapter with its switch and scale. */
function adapterRow({ id, tier, rank, model }, chosen, changed) {
  const box = h('input', { type: 'checkbox', checked: id in chosen });
  const scale = h('input', { type: 'number', min: -10, max: 10, step: 0.1, value: chosen[id] ?? 1, 'aria-label': `Scale of ${id}` });
  const update = () => {
    scale.disabled = !box.checked;
    if (box.checked && scale.validity.valid && scale.value !== '') chosen[id] = Number(scale.value);
    else delete chosen[id];
    changed();
  };
  box.addEventListener('change', update);
  scale.addEventListener('change', update);
  scale.disabled = !box.checked;
  const facts = [tier, rank && `rank ${rank}`].filter(Boolean).join(', ');
  return h('li.row', {}, h('label.check.grow', { title: model ?? '' }, box, h('span', {}, id, h('small.note', {}, facts))), scale);
}

/** Switches that are on as labels above the message field; `bad` ones are not sent. */
export function activeModes(settings) {
  const modes = [];
  if (settings.tools.on) {
    const { tools } = parseTools(settings.tools.text);
    modes.push(tools ? h('span', {}, countOf(tools)) : h('span.bad', {}, 'Tools not valid: not sent'));
  }
  if (settings.schema.on) {
    const { schema } = parseSchema(settings.schema.text);
    modes.push(schema ? h('span', {}, 'JSON schema') : h('span.bad', {}, 'Schema not valid: not sent'));
  }
  return [...modes, ...Object.entries(settings.adapters).map(([name, scale]) => h('span', {}, `${name} × ${scale}`))];
}

const countOf = (tools) => `${tools.length} ${tools.length === 1 ? 'tool' : 'tools'}`;
