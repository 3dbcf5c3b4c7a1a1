// Kernels in Chromium's WebGPU: repeats launches of the self-test (`cargo run --example trace`) and
// compares results. `node check.mjs CHROMIUM FOLDER`

import { createServer } from 'node:http';
import { createReadStream } from 'node:fs';
import { fileURLToPath } from 'node:url';
import { dirname, join } from 'node:path';
import { Page } from '../../../server/tests/web/browser.mjs';

const WEBGPU = [
  '--enable-unsafe-webgpu', '--use-webgpu-adapter=swiftshader', '--enable-features=Vulkan', '--use-vulkan=swiftshader',
];
const HERE = dirname(fileURLToPath(import.meta.url));
const [chromium, folder] = process.argv.slice(2);
if (!folder) throw new Error('usage: node check.mjs CHROMIUM FOLDER');

const files = {
  '/launches.json': ['application/json', join(folder, 'launches.json')],
  '/data.bin': ['application/octet-stream', join(folder, 'data.bin')],
  '/page.js': ['text/javascript', join(HERE, 'page.js')],
};
const server = createServer(({ url }, answer) => {
  const [type, file] = files[url] ?? ['text/html'];
  answer.writeHead(200, { 'content-type': type });
  if (file) createReadStream(file).pipe(answer);
  else answer.end('<!doctype html><link rel="icon" href="data:,"><script src="page.js"></script>');
});
await new Promise((resolve) => { server.listen(0, '127.0.0.1', resolve); });

const page = await Page.start(chromium, WEBGPU);
try {
  await page.open(`http://127.0.0.1:${server.address().port}/`);
  const progress = process.stderr.isTTY && setInterval(async () => {
    process.stderr.write(`\r${await page.eval('done')} launches`);
  }, 1000);
  const { adapter, launches, kernels, values, others, failed } = await page.eval('check()');
  clearInterval(progress);
  for (const fault of failed) console.error(fault);
  console.log(`${kernels} kernels, ${launches} launches on ${adapter}: ${failed.length} failed; of ${values} values ${others} have other bits`);
  if (failed.length || !launches) process.exitCode = 1;
} finally {
  await page.close();
  server.close();
}
