// Checks of the built-in page in Chromium against any server that serves it.
//
//   node check.mjs --url http://127.0.0.1:8080/ [--key KEY] [--chromium PATH] [--shots FOLDER]
//   node check.mjs --mock        also checks what only the stand-in can produce: keys, errors
//
// Prints a line per check and ends with status 1 if one fails.

import assert from 'node:assert/strict';
import { mkdirSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { parseArgs } from 'node:util';

import { Page } from './browser.mjs';
import { start } from './mock.mjs';

const { values: options } = parseArgs({ options: {
  url: { type: 'string' }, key: { type: 'string' }, mock: { type: 'boolean' },
  chromium: { type: 'string', default: 'chromium' }, shots: { type: 'string' },
} });

const IDLE = 'document.querySelector("#send").getAttribute("aria-label") === "Send"';
const REPLY = 'document.querySelector("article.assistant:last-of-type")';

/** Report of the browser about an endpoint that a server may lack; the page then hides its part. */
const OPTIONAL = /status of 404 .*\/v1\/(adapters|live)$/;

/** Text of a model that tries to become HTML, script, or an address of another scheme. */
const HOSTILE = `# Title

<script>window.broken = 1</script> <img src=x onerror="window.broken = 2">

[a](javascript:window.broken=3) [b](data:text/html,x) [c](https://example.org/a_(b)) https://example.org/d.

![image](https://example.org/pixel.png)

- one **bold** and *italic* and \`code <b>\`
  - nested
    1. deeper

| a | b |
|:-:|---|
| 1 | <b>2</b> |

\`\`\`html
<script>window.broken = 4</script>
\`\`\`

> quote with ~~gone~~ and snake_case_name and 2 * 3 * 4

${'*'.repeat(3000)} ${'['.repeat(3000)} ${'> '.repeat(300)}end`;

let server = null;
let url = options.url;
if (options.mock) {
  server = await start(0, '');
  url = `http://127.0.0.1:${server.address().port}/`;
}
assert.ok(url, 'give --url or --mock');
const { origin } = new URL(url);
const page = await Page.start(options.chromium);
let failed = 0;

/** Runs one check; errors that the page reports meanwhile fail it too. */
async function check(name, run) {
  page.errors.length = 0;
  try {
    const note = await run();
    assert.deepEqual(page.errors.filter((text) => !OPTIONAL.test(text)), [], 'errors in the console');
    console.log(`ok    ${name}${note ? `: ${note}` : ''}`);
  } catch (error) {
    failed += 1;
    console.log(`FAIL  ${name}: ${error.message}`);
    await shot(`fail-${failed}`);
  }
}

async function shot(name) {
  if (!options.shots) return;
  mkdirSync(options.shots, { recursive: true });
  writeFileSync(join(options.shots, `${name}.png`), await page.screenshot());
}

/** Opens the page with an empty storage, apart from the given entries. */
async function fresh(entries = {}) {
  const all = { ...(options.key && { 'ruvllm.key': options.key }), ...entries };
  // Before the scripts of the page and after the previous one's, which writes its settings.
  const source = `localStorage.clear(); sessionStorage.clear();
    Object.entries(${JSON.stringify(all)}).forEach(([name, value]) => localStorage.setItem(name, value))`;
  const { identifier } = await page.send('Page.addScriptToEvaluateOnNewDocument', { source });
  await page.open(url);
  await page.send('Page.removeScriptToEvaluateOnNewDocument', { identifier });
  await page.until('document.querySelector("#model").options.length > 0');
}

const settings = (changes) => ({ 'ruvllm.settings': JSON.stringify(changes) });

async function send(text) {
  await page.eval('document.querySelector("#prompt").focus()');
  await page.type(text);
  await page.press('Control+Enter');
}

/** A conversation in the storage, as an earlier visit leaves it. */
const kept = (messages, id = '1') => ({ [`ruvllm.chat.${id}`]: JSON.stringify({ id, title: '', updated: 1, messages }) });

await page.emulate({});

await check('page loads', async () => {
  await fresh();
  const headers = await page.eval(`fetch('/').then((r) => Object.fromEntries(r.headers))`);
  assert.match(headers['content-security-policy'] ?? '', /default-src 'self'/);
  await shot('start-light');
});

await check('chat streams to its end', async () => {
  await fresh();
  await page.eval(`window.steps = 0; new MutationObserver(() => { window.steps += 1; })
    .observe(document.querySelector('#messages'), { childList: true, subtree: true, characterData: true })`);
  await send('How does a KV cache work?');
  await page.until(`${REPLY} && ${IDLE}`, 60);
  assert.ok(await page.eval(`${REPLY}.querySelector('.markdown').innerText.length > 0`), 'a text');
  assert.equal(await page.eval(`${REPLY}.querySelector('.badge.bad')?.innerText ?? ''`), '');
  assert.ok(await page.eval('window.steps > 3'), 'several steps');
  return page.eval(`${REPLY}.querySelector('footer').innerText`);
});

await check('a conversation outlives the page', async () => {
  const text = await page.eval(`${REPLY}.innerText`);
  await page.open(url);
  await page.until('document.querySelector("#chats .name")');
  await page.eval('document.querySelector("#chats .name").click()');
  assert.equal(await page.eval(`${REPLY}.innerText`), text);
});

await check('stop ends a reply and keeps its text', async () => {
  await fresh(settings({ sampling: { max_tokens: 4000 } }));
  // A small model may end by itself before the key is pressed.
  for (let attempt = 0; attempt < 5; attempt += 1) {
    await send('Tell me a very long story');
    await page.until(`${REPLY}?.querySelector('.markdown').innerText.length > 0`, 60);
    await page.press('Escape');
    await page.until(IDLE, 5);
    await page.until(`${REPLY}.querySelector('footer').innerText`);
    if ((await page.eval(`${REPLY}.querySelector('footer').innerText`)).includes('stopped')) return;
  }
  assert.fail('no reply was stopped');
});

await check('regenerate and edit', async () => {
  await fresh();
  await send('First');
  await page.until(`${REPLY} && ${IDLE}`, 60);
  await page.press('Alt+KeyR');
  await page.until(`document.querySelectorAll('article.assistant').length === 1 && ${IDLE}`, 60);
  await page.press('Alt+KeyE');
  await page.type(' and second');
  await page.press('Control+Enter');
  await page.until(`document.querySelectorAll('article').length === 2 && ${IDLE}`, 60);
  assert.equal(await page.eval('document.querySelector("article.user .text").innerText'), 'First and second');
});

await check('markdown is rendered, hostile text stays text', async () => {
  await fresh(kept([{ role: 'user', content: 'x' }, { role: 'assistant', content: HOSTILE }]));
  await page.eval('document.querySelector("#chats .name").click()');
  const found = await page.eval(`(() => {
    const node = ${REPLY}.querySelector('.markdown');
    const count = (selector) => node.querySelectorAll(selector).length;
    return { broken: window.broken ?? 0, scripts: count('script, img, iframe, b'), heading: count('h3'), strong: count('strong'), em: count('em'),
      code: count('pre code'), nested: count('ul ul ol li'), cells: count('td'), quote: count('blockquote del'),
      links: [...node.querySelectorAll('a')].map((a) => a.getAttribute('href')), text: node.textContent.includes('<script>window.broken = 1</script>'),
      names: node.textContent.includes('snake_case_name and 2 * 3 * 4') };
  })()`);
  assert.deepEqual(found, { broken: 0, scripts: 0, heading: 1, strong: 1, em: 1, code: 1, nested: 1, cells: 2, quote: 1,
    links: ['https://example.org/a_(b)', 'https://example.org/d', 'https://example.org/pixel.png'], text: true, names: true });
});

await check('a tool call becomes a card, its result goes back', async () => {
  await fresh(settings({ sampling: { max_tokens: 200 } }));
  await page.eval('document.querySelector("#tools-example").click()');
  await page.eval(`(() => { const choice = document.querySelector('#tool-choice'); choice.value = 'get_weather'; choice.dispatchEvent(new Event('change')); })()`);
  await send('How warm is it in Rome?');
  await page.until(`document.querySelector('.card textarea') && ${IDLE}`, 60);
  assert.equal(await page.eval('document.querySelector(".card strong").innerText'), 'get_weather');
  assert.match(await page.eval('document.querySelector(".card pre").innerText'), /"city": "/);
  assert.equal(await page.eval('document.activeElement.closest(".card") !== null'), true, 'the field has the focus');
  await page.type('{"celsius": 21}');
  await page.press('Control+Enter');
  await page.until(`document.querySelectorAll('article.assistant').length === 2 && ${IDLE}`, 60);
  assert.match(await page.eval('document.querySelector(".card").innerText'), /"celsius": 21/);
  await shot('tools-light');
});

await check('definitions that are wrong are named', async () => {
  await page.eval(`(() => { const field = document.querySelector('#tools'); field.value = '[{"type": "function"}]'; field.dispatchEvent(new Event('input')); })()`);
  assert.match(await page.eval('document.querySelector("#tools-note").textContent'), /Tool 1 needs/);
  assert.equal(await page.eval('document.querySelector("#tools").getAttribute("aria-invalid")'), 'true');
});

await check('a reply with a schema is checked', async () => {
  await fresh(settings({ sampling: { max_tokens: 400 } }));
  await page.eval('document.querySelector("#schema-example").click()');
  await send('Describe a person');
  await page.until(`${REPLY}?.querySelector('.badge') && ${IDLE}`, 60);
  assert.equal(await page.eval(`${REPLY}.querySelector('.badge').innerText`), 'Valid: matches the schema');
  assert.ok(JSON.parse(await page.eval(`${REPLY}.querySelector('pre').innerText`)).name !== undefined);
});

await check('keyboard only', async () => {
  await fresh();
  const focus = () => page.eval(`(() => { const e = document.activeElement; return e.id || e.getAttribute('aria-label') || e.innerText || e.tagName; })()`);
  assert.equal(await focus(), 'prompt');
  await page.press('Control+k');
  assert.equal(await focus(), 'find');
  await page.press('Alt+KeyL');
  assert.equal(await focus(), 'tab-live');
  await page.press('ArrowRight');
  assert.equal(await focus(), 'tab-settings');
  await page.press('?');
  assert.equal(await page.eval('document.querySelector("#help-dialog").open'), true);
  await page.press('Escape');
  assert.equal(await page.eval('document.querySelector("#help-dialog").open'), false);
  await page.press('/');
  assert.equal(await focus(), 'prompt');
  const seen = new Set();
  for (let step = 0; step < 60 && !(step > 3 && (await focus()) === 'prompt'); step += 1) {
    await page.press('Tab');
    const name = await focus();
    seen.add(name);
    const visible = await page.eval(`(() => { const e = document.activeElement; if (e === document.body) return true;
      const style = getComputedStyle(e); return e.id === 'prompt' || style.outlineStyle !== 'none'; })()`);
    assert.ok(visible, `no visible focus on ${name}`);
  }
  for (const name of ['new', 'find', 'theme', 'help', 'model', 'open-panel', 'tab-settings', 'system', 'sampling-seed']) assert.ok(seen.has(name), `Tab does not reach ${name}`);
  return `${seen.size} stops`;
});

await check('live view', async () => {
  await fresh();
  await page.press('Alt+KeyL');
  await page.until('document.querySelector("#live").children.length > 0');
  assert.ok(await page.eval('document.querySelector("section.live h3")?.innerText.length > 0'), 'a section of a model');
  return page.eval('document.querySelector("section.live header").innerText.replace(/\\s+/g, " ")');
});

await check('dark and light, wide and narrow', async () => {
  const titles = ['Plan a week in Lisbon', 'Regex for ISO dates', 'Rust lifetimes, again', 'Summary of the meeting notes'];
  await fresh(Object.assign({}, ...titles.map((content, id) => kept([{ role: 'user', content }], `${id}`))));
  await send('How does a KV cache save work?');
  await page.until(`${REPLY} && ${IDLE}`, 60);
  await page.press('Alt+KeyL');
  await page.until('document.querySelector("#live").children.length > 0');
  await page.eval('document.querySelector(".tree:not([hidden]) summary")?.click()');
  await page.press('/');
  const background = 'getComputedStyle(document.body).backgroundColor';
  const seen = [];
  for (const theme of ['light', 'dark']) {
    await page.emulate({ theme });
    seen.push(await page.eval(background));
    await shot(`chat-${theme}`);
    await page.emulate({ theme, width: 390, height: 844, touch: true });
    await shot(`narrow-${theme}`);
    await page.emulate({ theme });
  }
  assert.notEqual(seen[0], seen[1]);
  await page.press('Alt+KeyD');
  assert.equal(await page.eval(background), seen[0], 'the switch goes before the system');
});

await check('360 pixels', async () => {
  await page.emulate({ width: 360, height: 740, touch: true });
  for (const opener of [null, '#open-side', '#open-panel']) {
    if (opener) await page.eval(`document.querySelector('${opener}').click()`);
    await shot(`360${opener?.slice(5) ?? ''}`);
    const wide = await page.eval(`[...document.querySelectorAll('body *')].filter((e) => e.checkVisibility() && !e.closest('.hidden, .skip, pre, .table, svg')
      && (e.getBoundingClientRect().right > innerWidth + 1 || e.getBoundingClientRect().left < -1)).map((e) => e.id || e.className || e.tagName)`);
    assert.deepEqual(wide, [], 'wider than the screen');
    await page.press('Escape');
    assert.equal(await page.eval('document.body.dataset.drawer ?? ""'), '');
  }
  await page.emulate({});
});

await check('reduced motion', async () => {
  await page.emulate({ motion: 'reduce' });
  const animation = await page.eval(`(() => { const e = document.createElement('article'); e.className = 'waiting'; document.body.append(e);
    const name = getComputedStyle(e, '::before').animationName; e.remove(); return name; })()`);
  assert.equal(animation, 'none');
  await page.emulate({});
});

if (options.mock) {
  await check('reasoning is apart from the answer', async () => {
    await fresh();
    await send('Please reason');
    await page.until(`${REPLY} && ${IDLE}`);
    assert.equal(await page.eval(`${REPLY}.querySelector('.thought .text').textContent`), 'Two and two are four.');
    assert.equal(await page.eval(`${REPLY}.querySelector('.markdown').innerText`), 'The answer is 4.');
  });

  await check('good, bad and a right answer teach the model', async () => {
    const note = `${REPLY}.querySelector('.actions [role=status]').textContent`;
    const button = (label) => `${REPLY}.querySelector('[aria-label="${label}"]')`;
    const pressed = (label) => page.eval(`${button(label)}.getAttribute('aria-pressed')`);
    const last = () => server.lessons.at(-1);
    await fresh();
    await send('x');
    await page.until(`${REPLY} && ${IDLE} && ${button('Good reply')}`);
    assert.deepEqual([await pressed('Good reply'), await page.eval(note)], ['false', '']);
    await page.eval(`${button('Good reply')}.focus()`);
    await page.press('Enter');
    await page.until(`${note}.startsWith('Learned')`);
    assert.deepEqual(last(), { model: 'llama-1b', request_id: 'req_1', accepted: true });
    assert.equal(await page.eval('document.activeElement.getAttribute("aria-label")'), 'Good reply', 'the focus stays');
    await page.until(`document.querySelector('#adapter-list').textContent.includes('learned1 lesson')`);
    await page.eval(`${button('Bad reply')}.click()`);
    await page.until(`${button('Bad reply')}.getAttribute('aria-pressed') === 'true'`);
    assert.equal(last().accepted, false);
    assert.equal(await pressed('Good reply'), 'false');

    const type = async (text) => {
      await page.eval(`${button('Correct reply')}.focus()`);
      await page.press('Enter');
      assert.match(await page.eval('document.activeElement.value'), /KV cache/, 'the field begins with the answer');
      await page.eval('document.activeElement.value = ""');
      await page.type(text);
    };
    await type('never sent');
    await shot('feedback');
    await page.press('Escape');
    assert.equal(await page.eval('document.activeElement.getAttribute("aria-label")'), 'Correct reply');
    assert.equal(server.lessons.length, 2);
    await type('noise');
    await page.press('Control+Enter');
    await page.until(`${note}.includes('too improbable')`);
    assert.deepEqual(last(), { model: 'llama-1b', request_id: 'req_1', correction: 'noise' });
    await type('fail');
    await page.press('Control+Enter');
    await page.until(`document.querySelector('.toast')?.innerText.includes('no such request')`);
    page.errors = page.errors.filter((text) => !text.includes('404'));

    await page.open(url);
    await page.until('document.querySelector("#chats .name") && document.querySelector("#model").options.length > 0');
    await page.eval('document.querySelector("#chats .name").click()');
    assert.ok(await page.eval(`${note}.includes('too improbable')`), 'the feedback is kept');
    await page.eval(`(() => { const model = document.querySelector('#model'); model.value = 'qwen3-0.6b'; model.dispatchEvent(new Event('change')); })()`);
    await send('y');
    await page.until(`document.querySelectorAll('article.assistant').length === 2 && ${IDLE}`);
    await page.until(`${REPLY}.querySelector('[aria-label="Copy reply"]')`);
    assert.equal(await page.eval(`${button('Good reply')} === null`), true, 'a model that learns nothing has no buttons');
  });

  await check('adapters are sent with their scales', async () => {
    await fresh();
    await page.until(`document.querySelector('#adapter-list input')`);
    await page.eval(`document.querySelector('#adapter-list input').click()`);
    await send('x');
    await page.until(`${REPLY} && ${IDLE}`);
    assert.equal(await page.eval(`${REPLY}.querySelector('.markdown').innerText`), 'Adapters: support 1');
  });

  await check('an error is shown and can be tried again', async () => {
    await fresh();
    await send('fail');
    await page.until(`${REPLY}?.querySelector('.badge.bad')`);
    assert.match(await page.eval(`${REPLY}.querySelector('.badge.bad').innerText`), /64 requests wait \(again in 2 s\)/);
    // The browser itself reports the status.
    page.errors = page.errors.filter((text) => !text.includes('503'));
  });

  await check('the key is asked for and kept in the tab only', async () => {
    const guarded = await start(0, 'secret');
    try {
      const there = `http://127.0.0.1:${guarded.address().port}/`;
      await page.open(there);
      await page.until('document.querySelector("#key-dialog").open');
      await shot('key');
      await page.press('Escape');
      await page.until('!document.querySelector("#key-dialog").open');
      await page.eval('document.querySelector("#tab-live").click()');
      await page.until('document.querySelector("#live").innerText.includes("key is required")');
      await send('Hello');
      await page.until('document.querySelector("#key-dialog").open');
      await page.type('secret');
      await page.press('Enter');
      await page.until('document.querySelector("#model").options.length > 0 && document.querySelector("section.live")');
      await page.until(`${REPLY}.querySelector('.markdown').innerText.length > 0 && ${IDLE}`);
      assert.deepEqual(await page.eval('[sessionStorage.getItem("ruvllm.key"), localStorage.getItem("ruvllm.key")]'), ['secret', null]);
      page.errors = page.errors.filter((text) => !text.includes('401'));
      page.requests = page.requests.filter((request) => !request.startsWith(there));
      await page.open(url);
    } finally {
      guarded.closeAllConnections();
      guarded.close();
    }
  });
}

await check('no request to another origin', async () => {
  const foreign = page.requests.filter((request) => !request.startsWith(`${origin}/`) && !/^(blob|about|data):/.test(request));
  assert.deepEqual(foreign, []);
  return `${page.requests.length} requests`;
});

await page.close();
server?.closeAllConnections();
server?.close();
process.exitCode = failed ? 1 : 0;
