// Feedback on a reply: good, bad, or the right answer. Each is a lesson for an adapter of the server.

import { call } from './api.js';
import { announce, h, iconButton, toast } from './dom.js';

/** Models that learn from feedback of the caller, as the list of models says. */
export const teachable = new Set();

const RESULTS = {
  learned: 'Learned by the adapter "learned"',
  outlier: 'Not learned: the answer is too improbable',
  quarantined: 'Not learned: the adapter has done harm and waits for its release',
};

/** Replies whose feedback is on its way. */
const sending = new WeakSet();

/** True for a whole reply of a model that learns. */
export const canTeach = ({ model, request, finish, error }) =>
  teachable.has(model) && Boolean(request) && !error && Boolean(finish) && finish !== 'stopped';

/** Buttons, state and form of the feedback on a reply; `taught` is called when a lesson has ended. */
export function feedback(message, answer, taught) {
  const note = h('span.note', { role: 'status' });
  const field = h('textarea', { rows: 4, 'aria-label': 'Right answer' });
  const form = h('div.correction', { hidden: true }, field, h('div.row', {}, h('span.note.grow', {}, 'The model learns to give this answer'),
    h('button', { type: 'button', onclick: () => open(false) }, 'Cancel'),
    h('button.primary', { type: 'button', onclick: () => correct() }, 'Teach')));
  const rate = (name, accepted) => iconButton(name, `${name === 'good' ? 'Good' : 'Bad'} reply`, () => give(name, { accepted }));
  const buttons = { good: rate('good', true), bad: rate('bad', false), corrected: iconButton('edit', 'Correct reply', () => open(form.hidden)) };

  function show() {
    const { given, result } = message.feedback ?? {};
    for (const name of ['good', 'bad']) buttons[name].setAttribute('aria-pressed', String(given === name));
    buttons.corrected.setAttribute('aria-expanded', String(!form.hidden));
    // Disabled buttons would lose the focus of the keyboard.
    for (const button of Object.values(buttons)) button.setAttribute('aria-disabled', String(sending.has(message)));
    note.textContent = sending.has(message) ? 'Learning…' : (RESULTS[result] ?? '');
  }

  function open(wanted) {
    if (sending.has(message)) return;
    form.hidden = !wanted;
    if (wanted) field.value = answer;
    (wanted ? field : buttons.corrected).focus();
    if (wanted) form.scrollIntoView({ block: 'nearest' });
    show();
  }

  function correct() {
    if (!field.value.trim()) return;
    open(false);
    give('corrected', { correction: field.value });
  }

  async function give(given, lesson) {
    if (sending.has(message)) return;
    sending.add(message);
    show();
    try {
      const body = { model: message.model, request_id: message.request, ...lesson };
      const { result } = await (await call('/v1/feedback', { body })).json();
      message.feedback = { given, result };
      announce(RESULTS[result] ?? 'Feedback sent');
    } catch (error) {
      toast(error.retryAfter ? `${error.message} (again in ${error.retryAfter} s)` : error.message);
    }
    sending.delete(message);
    show();
    taught(note.isConnected);
  }

  field.addEventListener('keydown', (event) => {
    if (event.key === 'Enter' && (event.ctrlKey || event.metaKey)) correct();
    else if (event.key === 'Escape') open(false);
    else return;
    event.preventDefault();
    event.stopPropagation();
  });
  show();
  return { buttons: Object.values(buttons), note, form };
}
