// Chromium without a window, driven through the DevTools protocol over pipes.

import { spawn } from 'node:child_process';
import { mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';

const FLAGS = [
  '--headless', '--no-sandbox', '--disable-gpu', '--disable-quic', '--no-first-run', '--hide-scrollbars',
  '--disable-background-networking', '--disable-component-update', '--disable-sync', '--remote-debugging-pipe',
];

/** A page of a fresh profile. `errors` and `requests` collect what the page reports. */
export class Page {
  /** `more`: further flags of the browser. */
  static async start(chromium, more = []) {
    const page = new Page();
    page.profile = mkdtempSync(join(tmpdir(), 'ruvllm-web-'));
    page.process = spawn(chromium, [...FLAGS, ...more, `--user-data-dir=${page.profile}`, 'about:blank'],
      { stdio: ['ignore', 'ignore', 'ignore', 'pipe', 'pipe'] });
    const started = new Promise((resolve, reject) => {
      page.process.once('error', reject);
      page.process.once('exit', (code) => reject(new Error(`${chromium} ended with ${code}`)));
      page.process.once('spawn', resolve);
    });
    await started;
    page.calls = new Map();
    page.errors = [];
    page.requests = [];
    page.listen(page.process.stdio[4]);
    const { targetInfos } = await page.send('Target.getTargets', {}, null);
    const { targetId } = targetInfos.find((target) => target.type === 'page');
    ({ sessionId: page.session } = await page.send('Target.attachToTarget', { targetId, flatten: true }, null));
    for (const domain of ['Page', 'Runtime', 'Log', 'Network']) await page.send(`${domain}.enable`);
    return page;
  }

  listen(pipe) {
    let buffer = '';
    pipe.setEncoding('utf8').on('data', (text) => {
      const messages = (buffer + text).split('\0');
      buffer = messages.pop();
      for (const message of messages.map((part) => JSON.parse(part))) this.receive(message);
    });
  }

  receive({ id, method, params, result, error }) {
    if (id) {
      const { resolve, reject } = this.calls.get(id);
      this.calls.delete(id);
      if (error) reject(new Error(error.message));
      else resolve(result);
    } else if (method === 'Runtime.exceptionThrown') {
      this.errors.push(params.exceptionDetails.exception?.description ?? params.exceptionDetails.text);
    } else if (method === 'Runtime.consoleAPICalled' && ['error', 'warning'].includes(params.type)) {
      this.errors.push(params.args.map((arg) => arg.value ?? arg.description).join(' '));
    } else if (method === 'Log.entryAdded' && params.entry.level === 'error') {
      this.errors.push(`${params.entry.text} ${params.entry.url ?? ''}`);
    } else if (method === 'Network.requestWillBeSent') {
      this.requests.push(params.request.url);
    }
  }

  send(method, params = {}, sessionId = this.session) {
    const id = (this.count = (this.count ?? 0) + 1);
    const message = { id, method, params, ...(sessionId && { sessionId }) };
    this.process.stdio[3].write(`${JSON.stringify(message)}\0`);
    return new Promise((resolve, reject) => this.calls.set(id, { resolve, reject }));
  }

  /** Value of an expression in the page. */
  async eval(expression) {
    const { result, exceptionDetails } = await this.send('Runtime.evaluate', { expression, returnByValue: true, awaitPromise: true });
    if (exceptionDetails) throw new Error(exceptionDetails.exception?.description ?? exceptionDetails.text);
    return result.value;
  }

  /** Polls until an expression is true. */
  async until(expression, seconds = 20) {
    const end = Date.now() + seconds * 1000;
    while (!(await this.eval(expression))) {
      if (Date.now() > end) throw new Error(`not within ${seconds} s: ${expression}`);
      await new Promise((resolve) => setTimeout(resolve, 20));
    }
  }

  async open(url) {
    const { errorText } = await this.send('Page.navigate', { url });
    if (errorText) throw new Error(`${url}: ${errorText}`);
    await this.until('document.readyState === "complete" && location.href !== "about:blank"');
  }

  type(text) {
    return this.send('Input.insertText', { text });
  }

  /** Presses a key: `'Tab'`, `'Control+Enter'`, `'Alt+KeyN'`, `'?'`. */
  async press(combination) {
    const parts = combination.split('+');
    const name = parts.pop();
    const modifiers = parts.reduce((bits, part) => bits | { Alt: 1, Control: 2, Meta: 4, Shift: 8 }[part], 0);
    const letter = /^Key([A-Z])$/.exec(name)?.[1];
    const key = letter ? letter.toLowerCase() : name;
    const codes = { Tab: 9, Enter: 13, Escape: 27, ArrowUp: 38, ArrowDown: 40, ArrowLeft: 37, ArrowRight: 39 };
    const text = modifiers & 7 ? undefined : name === 'Enter' ? '\r' : key.length === 1 ? key : undefined;
    const event = { modifiers, key, code: name, windowsVirtualKeyCode: codes[name] ?? key.toUpperCase().charCodeAt(0), text };
    await this.send('Input.dispatchKeyEvent', { type: text ? 'keyDown' : 'rawKeyDown', ...event });
    await this.send('Input.dispatchKeyEvent', { type: 'keyUp', ...event, text: undefined });
  }

  /** Sets size, theme and motion that the page is told. */
  async emulate({ width = 1280, height = 800, theme = 'light', motion = 'no-preference', touch = false }) {
    await this.send('Emulation.setDeviceMetricsOverride', { width, height, deviceScaleFactor: 1, mobile: touch });
    await this.send('Emulation.setTouchEmulationEnabled', { enabled: touch });
    await this.send('Emulation.setEmulatedMedia', {
      features: [{ name: 'prefers-color-scheme', value: theme }, { name: 'prefers-reduced-motion', value: motion },
        { name: 'hover', value: touch ? 'none' : 'hover' }, { name: 'pointer', value: touch ? 'coarse' : 'fine' }],
    });
  }

  /** The view as PNG. */
  async screenshot() {
    const { data } = await this.send('Page.captureScreenshot', { format: 'png' });
    return Buffer.from(data, 'base64');
  }

  async close() {
    const ended = new Promise((resolve) => { this.process.once('exit', resolve); });
    this.send('Browser.close', {}, null).catch(() => {});
    await ended;
    rmSync(this.profile, { recursive: true, force: true });
  }
}
