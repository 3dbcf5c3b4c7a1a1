// Building blocks of the page: elements, icons, short texts. No text is ever parsed as HTML.

/** The element with this id. */
export const $ = (id) => document.getElementById(id);

/**
 * Creates an element: `h('button.icon', {type: 'button', onclick: f}, 'text', node)`.
 * Functions become listeners, true an empty attribute; false, null and undefined are left out.
 */
export function h(spec, attributes = {}, ...children) {
  const [tag, ...classes] = spec.split('.');
  const element = document.createElement(tag);
  if (classes.length) element.className = classes.join(' ');
  for (const [name, value] of Object.entries(attributes)) {
    if (typeof value === 'function') element.addEventListener(name.slice(2), value);
    else if (value === true) element.setAttribute(name, '');
    else if (value !== false && value != null) element.setAttribute(name, value);
  }
  element.append(...children.flat().filter((child) => child != null && child !== false));
  return element;
}

/** Creates an SVG element. */
export function svg(tag, attributes = {}, ...children) {
  const element = document.createElementNS('http://www.w3.org/2000/svg', tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  element.append(...children);
  return element;
}

/** Outlines on a 16 by 16 grid. */
const ICONS = {
  menu: 'M2 4h12M2 8h12M2 12h12',
  sliders: 'M2 5h6M12 5h2M2 11h2M8 11h6M10 3v4M6 9v4',
  plus: 'M8 3v10M3 8h10',
  close: 'M4 4l8 8M12 4l-8 8',
  copy: 'M6 6h7v7H6zM3 10V3h7',
  check: 'M3 8.5l3.5 3.5L13 4.5',
  redo: 'M13 3v4H9M13 7a5.5 5.5 0 1 0 .3 3',
  edit: 'M3 13l.7-3L10.5 3.2l2.3 2.3L6 12.3z',
  trash: 'M3 4.5h10M6 4.5V3h4v1.5M4.5 4.5L5 13h6l.5-8.5',
  download: 'M8 2.5v8M4.5 7.5L8 11l3.5-3.5M3 13.5h10',
  theme: 'M8 2.5a5.5 5.5 0 1 0 0 11zM8 2.5a5.5 5.5 0 0 1 0 11',
  help: 'M5.5 6a2.5 2.5 0 1 1 3.6 2.2c-.8.5-1.1.8-1.1 1.8M8 12.5v.5',
  send: 'M8 13V3.5M3.5 8L8 3.5 12.5 8',
  stop: 'M4.5 4.5h7v7h-7z',
  good: 'M5 7l2.5-4.5c.9 0 1.4.7 1.2 1.5L8.2 6.5h4.3l-1 6.5H5zM5 7H2.8v6H5',
  bad: 'M5 9l2.5 4.5c.9 0 1.4-.7 1.2-1.5L8.2 9.5h4.3l-1-6.5H5zM5 9H2.8V3H5',
};

/** An icon, hidden from assistive technology. */
export function icon(name) {
  return svg('svg', { viewBox: '0 0 16 16', class: 'glyph', 'aria-hidden': 'true' }, svg('path', { d: ICONS[name] }));
}

/** A button with an icon and a label for assistive technology and the tooltip. */
export function iconButton(name, label, onclick) {
  return h('button.icon', { type: 'button', 'aria-label': label, title: label, onclick }, icon(name));
}

/** Shows a passing message, with an action if one is given. */
export function toast(text, action, run) {
  const note = h('div.toast', {}, h('span', {}, text));
  const timer = setTimeout(() => note.remove(), action ? 8000 : 4000);
  const act = () => { clearTimeout(timer); note.remove(); run(); };
  if (action) note.append(h('button', { type: 'button', onclick: act }, action));
  $('toasts').replaceChildren(note);
}

/** Tells assistive technology about a change of state. */
export const announce = (text) => { $('status').textContent = text; };

/** Copies a text and confirms it on the button. */
export async function copy(text, button) {
  try {
    await navigator.clipboard.writeText(text);
    button.replaceChildren(icon('check'));
    setTimeout(() => button.replaceChildren(icon('copy')), 1200);
    announce('Copied');
  } catch {
    toast('The browser does not allow copying here');
  }
}

/** Offers a value as a JSON file. */
export function download(name, value) {
  const url = URL.createObjectURL(new Blob([JSON.stringify(value, null, 2)], { type: 'application/json' }));
  h('a', { href: url, download: name }).click();
  setTimeout(() => URL.revokeObjectURL(url), 1000);
}
