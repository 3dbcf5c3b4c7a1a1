// Conversations and settings, kept in this browser's local storage.

const CHAT = 'ruvllm.chat.';
const SETTINGS = 'ruvllm.settings';

const read = (name) => {
  try {
    return JSON.parse(localStorage.getItem(name));
  } catch {
    return null;
  }
};

/** Settings of a request, before anything is chosen. */
const DEFAULTS = {
  model: '',
  system: '',
  sampling: {},
  adapters: {},
  tools: { on: false, text: '', choice: 'auto' },
  schema: { on: false, text: '', name: 'reply' },
};

/** Settings of the last session. */
export const loadSettings = () => {
  const kept = read(SETTINGS) ?? {};
  const settings = { ...structuredClone(DEFAULTS), ...kept };
  for (const part of ['tools', 'schema']) settings[part] = { ...DEFAULTS[part], ...kept[part] };
  return settings;
};

export const saveSettings = (settings) => put(SETTINGS, settings);

/** All conversations, the latest first. */
export function chats() {
  const names = Object.keys(localStorage).filter((name) => name.startsWith(CHAT));
  const found = names.map(read).filter((chat) => Array.isArray(chat?.messages));
  return found.sort((a, b) => b.updated - a.updated);
}

export const newChat = () => ({ id: crypto.randomUUID?.() ?? `${Date.now()}-${Math.random()}`, title: '', updated: Date.now(), messages: [] });

/** Keeps a conversation; one key each, so that several tabs do not overwrite one another. */
export const saveChat = (chat) => put(CHAT + chat.id, chat);

export const removeChat = (id) => localStorage.removeItem(CHAT + id);

/** False if the storage is full or blocked. */
function put(name, value) {
  try {
    localStorage.setItem(name, JSON.stringify(value));
    return true;
  } catch {
    return false;
  }
}

/** Title of a conversation: the given one, else the beginning of the first message. */
export function titleOf(chat) {
  const first = chat.messages.find((message) => message.role === 'user')?.content ?? '';
  const line = first.trim().split('\n')[0];
  return chat.title || (line.length > 60 ? `${line.slice(0, 59)}…` : line) || 'New chat';
}
