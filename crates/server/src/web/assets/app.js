// The page: conversations, sending, panels, theme, keyboard.

import { key } from './api.js';
import { $, announce, download, h, icon, iconButton, toast } from './dom.js';
import { watch } from './live.js';
import { growReply, scrollToEnd, showChat } from './messages.js';
import { emptyReply, generate, openCalls, requestBody, splitReasoning } from './session.js';
import { activeModes, bindSettings, loadLists } from './settings.js';
import { chats, loadSettings, newChat, removeChat, saveChat, saveSettings, titleOf } from './store.js';

const settings = loadSettings();
let chat = newChat();
let running = null; // AbortController of the reply in progress
const deleted = new Set(); // ids whose reply in progress must not bring them back

// ---- Conversation

const act = {
  show: () => { showChat(chat, act, Boolean(running)); },
  suggest(text) { $('prompt').value = text; send(); },
  edit(index, text) { rewind(index); add({ role: 'user', content: text }); reply(); },
  answer(results) { add(...results); reply(); },
  taught(owner, isShown) {
    if (!deleted.has(owner.id)) keep(owner);
    if (!isShown && owner === chat && !running) act.show();
    // The first lesson begins an adapter, which can be switched on.
    loadLists(settings, changed).catch(() => {});
  },
  regenerate() {
    const last = chat.messages.findLastIndex((message) => message.role === 'assistant');
    if (last < 0 || running) return;
    rewind(last);
    reply();
  },
};

/** Ends the reply in progress and drops the messages from `index` on. */
function rewind(index) {
  stop();
  chat.messages.length = index;
}

function add(...messages) {
  chat.messages.push(...messages);
  keep(chat);
}

function keep(changed) {
  changed.updated = Date.now();
  if (!saveChat(changed)) toast('The storage of this browser is full or blocked: export or delete conversations');
  showList();
}

function send() {
  const text = $('prompt').value.trim();
  if (!text || running) return;
  $('prompt').value = '';
  grow();
  add({ role: 'user', content: text });
  reply();
}

function stop() {
  running?.abort();
  running = null;
  showRunning();
}

/** Requests a reply to the conversation as it is. */
async function reply() {
  const [mine, control] = [chat, new AbortController()];
  const body = requestBody(mine, settings);
  const message = emptyReply(body);
  mine.messages.push(message);
  running = control;
  showRunning();
  act.show();
  scrollToEnd();
  announce('Generating');
  const current = () => mine === chat && running === control;
  let frame = 0;
  const onChange = () => { frame ||= requestAnimationFrame(() => { frame = 0; if (current()) growReply(mine, act); }); };
  let status;
  try {
    await generate(body, message, control.signal, onChange);
  } catch (error) {
    status = error.status;
    message.error = error.retryAfter ? `${error.message} (again in ${error.retryAfter} s)` : error.message;
  }
  cancelAnimationFrame(frame);
  if (running === control) running = null;
  showRunning();
  finish(mine, message);
  if (status === 401 && await askKey()) { await refresh(); act.regenerate(); }
}

/** Keeps and shows a reply that has ended. A stopped one without text leaves nothing. */
function finish(mine, message) {
  // An edit may have dropped the reply already.
  if (mine.messages.at(-1) === message && !deleted.has(mine.id)) {
    if (message.finish === 'stopped' && !message.content && !message.reasoning) mine.messages.pop();
    keep(mine);
  }
  if (mine !== chat) return;
  const log = $('log');
  const follows = log.scrollHeight - log.scrollTop - log.clientHeight < 80;
  act.show();
  if (follows) scrollToEnd();
  const text = splitReasoning(message.content).answer;
  announce(message.error ?? (message.finish === 'stopped' ? 'Stopped' : `Reply: ${text.slice(0, 1000)}`));
  if (openCalls(mine).length) document.querySelector('.card textarea')?.focus();
}

function open(next) {
  stop();
  chat = next;
  act.show();
  showList();
  scrollToEnd();
  closeDrawer();
  if (!isTouch()) $('prompt').focus();
}

function showRunning() {
  $('send').replaceChildren(icon(running ? 'stop' : 'send'));
  $('send').setAttribute('aria-label', running ? 'Stop' : 'Send');
  $('send').title = running ? 'Stop (Esc)' : 'Send (Ctrl Enter)';
}

/** Fits the message field to its text. */
function grow() {
  $('prompt').style.height = 'auto';
  $('prompt').style.height = `${Math.min($('prompt').scrollHeight, innerHeight * 0.4)}px`;
}

// ---- List of conversations

function showList() {
  const wanted = $('find').value.trim().toLowerCase();
  const holds = (one) => titleOf(one).toLowerCase().includes(wanted) || one.messages.some((message) => message.content?.toLowerCase().includes(wanted));
  $('chats').replaceChildren(...chats().filter((one) => !wanted || holds(one)).map(row));
  $('title').textContent = titleOf(chat);
  document.title = chat.messages.length ? `${titleOf(chat)} - ruvllm` : 'ruvllm';
}

function row(one) {
  const isOpen = one.id === chat.id;
  const name = h('button.name', { type: 'button', 'aria-current': isOpen && 'true', onclick: () => open(isOpen ? chat : one) }, titleOf(one));
  const item = h('li', {}, name,
    iconButton('edit', 'Rename', () => rename(item, one)),
    iconButton('download', 'Export', () => download(`${titleOf(one).replace(/[^\w-]+/g, '-')}.json`, one)),
    iconButton('trash', 'Delete', () => drop(one)));
  return item;
}

function rename(item, one) {
  const target = one.id === chat.id ? chat : one;
  const field = h('input', { value: titleOf(target), 'aria-label': 'Name', maxlength: 100 });
  const done = (keepName) => {
    if (keepName) { target.title = field.value.trim(); saveChat(target); }
    showList();
    document.querySelector('#chats [aria-current]')?.focus();
  };
  field.addEventListener('keydown', (event) => {
    if (event.key !== 'Enter' && event.key !== 'Escape') return;
    event.preventDefault();
    event.stopPropagation();
    done(event.key === 'Enter');
  });
  field.addEventListener('blur', () => field.isConnected && done(true));
  item.replaceChildren(field);
  field.select();
}

function drop(one) {
  removeChat(one.id);
  deleted.add(one.id);
  if (one.id === chat.id) open(newChat());
  else showList();
  toast(`Deleted "${titleOf(one)}"`, 'Undo', () => { deleted.delete(one.id); saveChat(one); showList(); });
}

// ---- Panels, dialogs, theme

/** True where focus opens a keyboard over the page. */
const isTouch = () => matchMedia('(pointer: coarse)').matches;

const wide = matchMedia('(min-width: 1100px)');

/** Opens or closes a side; on narrow screens it lies over the chat, which is inert meanwhile. */
function toggle(side, wanted) {
  const body = document.body;
  const narrow = side === 'panel' ? !wide.matches : !matchMedia('(min-width: 760px)').matches;
  if (narrow) {
    const opens = wanted ?? body.dataset.drawer !== side;
    if (!opens) return closeDrawer();
    body.dataset.drawer = side;
    document.querySelector('main').inert = true;
    $(side === 'panel' ? 'side' : 'panel').inert = true;
    $('scrim').hidden = false;
    (side === 'panel' ? document.querySelector('[role=tab][aria-selected=true]') : $('find')).focus();
  } else body.classList.toggle(`no-${side}`, wanted === undefined ? undefined : !wanted);
  showPanelState();
}

function closeDrawer() {
  const from = document.body.dataset.drawer;
  if (!from) return;
  delete document.body.dataset.drawer;
  for (const part of [document.querySelector('main'), $('side'), $('panel')]) part.inert = false;
  $('scrim').hidden = true;
  $(`open-${from}`).focus();
  showPanelState();
}

const panelIsOpen = () => (wide.matches ? !document.body.classList.contains('no-panel') : document.body.dataset.drawer === 'panel');

function showPanelState() {
  $('open-panel').setAttribute('aria-expanded', String(panelIsOpen()));
  $('open-side').setAttribute('aria-expanded', String(document.body.dataset.drawer === 'side'));
  watch(panelIsOpen() && !$('live').hidden && !document.hidden);
}

function showTab(name) {
  for (const each of ['settings', 'live']) {
    $(each).hidden = each !== name;
    $(`tab-${each}`).setAttribute('aria-selected', String(each === name));
    $(`tab-${each}`).tabIndex = each === name ? 0 : -1;
  }
  showPanelState();
}

/** Opens a tab of the panel, or closes the panel that shows it. */
function openTab(name) {
  if (panelIsOpen() && !$(name).hidden) return toggle('panel', false);
  showTab(name);
  toggle('panel', true);
  $(`tab-${name}`).focus();
}

function switchTheme() {
  const root = document.documentElement;
  const dark = root.dataset.theme ? root.dataset.theme === 'dark' : matchMedia('(prefers-color-scheme: dark)').matches;
  root.dataset.theme = dark ? 'light' : 'dark';
  try { localStorage.setItem('ruvllm.theme', root.dataset.theme); } catch { /* holds for this page only */ }
}

/** Asks for the API key; true if one was given. */
function askKey() {
  const dialog = $('key-dialog');
  $('key').value = '';
  dialog.returnValue = '';
  if (!dialog.open) dialog.showModal();
  return new Promise((resolve) => {
    dialog.addEventListener('close', () => {
      const given = dialog.returnValue === 'ok' && $('key').value.trim();
      if (given) key.set(given, $('key-keep').checked);
      $('key').value = '';
      resolve(Boolean(given));
    }, { once: true });
  });
}

/** Loads models and adapters; asks for a key until the server accepts it or the user gives up. */
async function refresh() {
  try {
    await loadLists(settings, changed);
    // What can be taught is known now.
    if (!running && chat.messages.length) act.show();
  } catch (error) {
    if (error.status === 401 && await askKey()) return refresh();
    toast(error.message, 'Try again', refresh);
  }
  $('key-section').hidden = !key.get();
  showPanelState();
}

function changed() {
  saveSettings(settings);
  $('modes').replaceChildren(...activeModes(settings));
}

// ---- Keyboard

const isField = (element) => /^(INPUT|TEXTAREA|SELECT)$/.test(element.tagName);

/** Shortcuts by `event.code`, so that Alt works in layouts where it writes other characters. */
const ALT = {
  KeyN: () => open(newChat()),
  KeyR: () => act.regenerate(),
  KeyE: () => [...document.querySelectorAll('.user [aria-label="Edit message"]')].at(-1)?.click(),
  KeyS: () => openTab('settings'),
  KeyL: () => openTab('live'),
  KeyD: switchTheme,
};

function onKey(event) {
  if (document.querySelector('dialog[open]')) return;
  const { key: name, code, altKey, ctrlKey, metaKey } = event;
  const free = !isField(event.target);
  const command = altKey && !ctrlKey && !metaKey ? ALT[code]
    : (ctrlKey || metaKey) && name.toLowerCase() === 'k' ? find
    : name === 'Escape' ? (document.body.dataset.drawer ? closeDrawer : running && stop)
    : free && name === '?' ? () => $('help-dialog').showModal()
    : free && name === '/' ? () => $('prompt').focus() : null;
  if (!command) return;
  event.preventDefault();
  command();
}

function find() {
  toggle('side', true);
  $('find').select();
}

/** Arrow keys in the list of conversations, from its search field too. */
function onListKey(event) {
  const step = { ArrowDown: 1, ArrowUp: -1 }[event.key];
  if (!step) return;
  const names = [$('find'), ...document.querySelectorAll('#chats .name')];
  names[names.indexOf(document.activeElement) + step]?.focus();
  event.preventDefault();
}

function onPromptKey(event) {
  if (event.key !== 'Enter' || event.isComposing || event.shiftKey || event.altKey) return;
  // On a touch keyboard Enter is a new line; the button sends.
  if (!event.ctrlKey && !event.metaKey && isTouch()) return;
  event.preventDefault();
  send();
}

function listen() {
  document.addEventListener('keydown', onKey);
  document.addEventListener('visibilitychange', showPanelState);
  wide.addEventListener('change', () => { closeDrawer(); showPanelState(); });
  addEventListener('storage', showList);
  $('compose').addEventListener('submit', (event) => { event.preventDefault(); if (running) stop(); else send(); });
  $('prompt').addEventListener('keydown', onPromptKey);
  $('prompt').addEventListener('input', grow);
  $('find').addEventListener('input', showList);
  $('side').addEventListener('keydown', onListKey);
  $('scrim').addEventListener('click', closeDrawer);
  for (const tab of document.querySelectorAll('[role=tab]')) {
    const other = () => document.querySelector('[role=tab][aria-selected=false]');
    tab.addEventListener('click', () => showTab(tab.getAttribute('aria-controls')));
    tab.addEventListener('keydown', (event) => {
      if (/^Arrow(Left|Right)$/.test(event.key)) { other().click(); document.querySelector('[role=tab][aria-selected=true]').focus(); }
    });
  }
  for (const button of document.querySelectorAll('[data-close]')) button.addEventListener('click', closeDrawer);
  const clicks = {
    new: () => open(newChat()), theme: switchTheme, help: () => $('help-dialog').showModal(),
    'open-side': () => toggle('side'), 'open-panel': () => toggle('panel'), export: () => download('ruvllm-conversations.json', chats()),
    'key-cancel': () => $('key-dialog').close('cancel'),
    'key-change': async () => { if (await askKey()) refresh(); }, 'key-forget': () => { key.forget(); refresh(); },
  };
  for (const [id, run] of Object.entries(clicks)) $(id).addEventListener('click', run);
}

for (const element of document.querySelectorAll('[data-icon]')) element.prepend(icon(element.dataset.icon));
for (const button of document.querySelectorAll('button.icon')) button.title ||= button.getAttribute('aria-label');
for (const button of document.querySelectorAll('button:not([type]):not(dialog button)')) button.type = button.id === 'send' ? 'submit' : 'button';
listen();
bindSettings(settings, changed);
showRunning();
act.show();
showList();
$('prompt').focus();
refresh();
