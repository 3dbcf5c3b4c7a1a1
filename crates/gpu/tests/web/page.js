// Runs launches of the self-test in this browser and compares what they write.

const U = GPUBufferUsage;

/** Buffers of the kernel with most: two more than every WebGPU device has. */
const STORAGE_BUFFERS = 10;

/** Largest difference of f32 values, as a share of the largest magnitude in the buffer. */
const FLOATS = 1e-5;

/** The same for layer norms, whose rows here cancel against a mean far from zero. */
const CENTERED = 1e-4;

const shareOf = ({ name }) => (name.includes('layer_norm') ? CENTERED : FLOATS);

/** Kernels whose words hold 8-bit or 16-bit values: a last digit may be rounded the other way. */
const ROUNDED = /q8|kv|latent_keys|expand/;

/** Element type of a binding, as the source declares it. */
function element(source, binding) {
  return new RegExp(`@binding\\(${binding}\\) var<storage, \\w+> \\w+: array<(.*)>;`).exec(source)[1];
}

function half(bits) {
  const [exponent, fraction] = [(bits >> 10) & 31, bits & 1023];
  const value = exponent === 31 ? (fraction ? NaN : Infinity)
    : exponent ? (1 + fraction / 1024) * 2 ** (exponent - 15) : fraction * 2 ** -24;
  return bits & 0x8000 ? -value : value;
}

const near = (a, b, share, least) => Object.is(a, b) || a === b || Math.abs(a - b) <= share * Math.abs(b) + least;

/** True for words that differ by the rounding of what they hold: f32, two f16, bytes, two sums. */
function rounded(found, expected, share) {
  const words = new Uint32Array([found, expected]);
  const [a, b] = new Float32Array(words.buffer);
  if (near(a, b, share, 0)) return true;
  const shorts = new Int16Array(words.buffer);
  const halves = new Uint16Array(words.buffer);
  const bytes = new Int8Array(words.buffer);
  return [0, 1].every((i) => near(half(halves[i]), half(halves[2 + i]), 2 ** -9, 2 ** -20))
    || [0, 1, 2, 3].every((i) => Math.abs(bytes[i] - bytes[4 + i]) <= 1)
    || [0, 1].every((i) => Math.abs(shorts[i] - shorts[2 + i]) <= 16);
}

/** Compares a buffer; gives the number of values with other bits, and the first that is wrong. */
function compare(launch, binding, found, expected) {
  const isFloat = element(launch.source, binding).includes('f32');
  const [words, right] = [new Uint32Array(found), new Uint32Array(expected)];
  const [values, exact] = [new Float32Array(found), new Float32Array(expected)];
  const largest = isFloat ? exact.reduce((most, x) => (Number.isFinite(x) ? Math.max(most, Math.abs(x)) : most), 0) : 0;
  const share = shareOf(launch);
  let others = 0;
  for (let i = 0; i < words.length; i += 1) {
    if (words[i] === right[i]) continue;
    others += 1;
    const good = isFloat ? near(values[i], exact[i], 0, share * largest) || (Number.isNaN(values[i]) && Number.isNaN(exact[i]))
      : ROUNDED.test(launch.name) && rounded(words[i], right[i], share);
    if (!good) return { others, wrong: `value ${i}: ${isFloat ? `${values[i]}, not ${exact[i]}` : `${words[i]}, not ${right[i]}`}` };
  }
  return { others };
}

function upload(device, bytes) {
  const buffer = device.createBuffer({ size: bytes.byteLength, usage: U.STORAGE | U.COPY_SRC, mappedAtCreation: true });
  new Uint8Array(buffer.getMappedRange()).set(new Uint8Array(bytes));
  buffer.unmap();
  return buffer;
}

async function pipelineOf(device, launch) {
  const module = device.createShaderModule({ code: launch.source });
  const { messages } = await module.getCompilationInfo();
  const error = messages.find(({ type }) => type === 'error');
  if (error) throw new Error(`line ${error.lineNum}: ${error.message}`);
  return device.createComputePipelineAsync({ layout: 'auto', compute: { module, entryPoint: 'main' } });
}

async function run(device, launch, pipeline, data) {
  const part = ([from, length]) => data.slice(from, from + length);
  const buffers = launch.buffers.map(({ before }) => upload(device, part(before)));
  const written = launch.buffers.map(({ after }, binding) => ({ after, binding })).filter(({ after }) => after);
  const copies = written.map(({ after }) => device.createBuffer({ size: after[1], usage: U.MAP_READ | U.COPY_DST }));
  const entries = buffers.map((buffer, binding) => ({ binding, resource: { buffer } }));
  const encoder = device.createCommandEncoder();
  const pass = encoder.beginComputePass();
  pass.setPipeline(pipeline);
  pass.setBindGroup(0, device.createBindGroup({ layout: pipeline.getBindGroupLayout(0), entries }));
  pass.dispatchWorkgroups(...launch.groups);
  pass.end();
  written.forEach(({ binding, after }, i) => encoder.copyBufferToBuffer(buffers[binding], 0, copies[i], 0, after[1]));
  device.queue.submit([encoder.finish()]);
  let others = 0;
  for (const [i, { after, binding }] of written.entries()) {
    await copies[i].mapAsync(GPUMapMode.READ);
    const result = compare(launch, binding, copies[i].getMappedRange(), part(after));
    others += result.others;
    if (result.wrong) throw new Error(`binding ${binding}, ${result.wrong}`);
  }
  [...buffers, ...copies].forEach((buffer) => buffer.destroy());
  return others;
}

/** Launches that have run. */
let done = 0;

/** Runs all launches; counts, and what failed. */
async function check() {
  const adapter = await navigator.gpu?.requestAdapter();
  if (!adapter) throw new Error('no WebGPU adapter');
  const maxStorageBuffersPerShaderStage = Math.min(STORAGE_BUFFERS, adapter.limits.maxStorageBuffersPerShaderStage);
  const device = await adapter.requestDevice({ requiredLimits: { maxStorageBuffersPerShaderStage } });
  const faults = [];
  device.onuncapturederror = ({ error }) => faults.push(error.message);
  const launches = await (await fetch('launches.json')).json();
  const data = await (await fetch('data.bin')).arrayBuffer();
  const pipelines = new Map();
  const failed = [];
  let others = 0;
  for (const launch of launches) {
    try {
      if (!pipelines.has(launch.source)) pipelines.set(launch.source, await pipelineOf(device, launch));
      others += await run(device, launch, pipelines.get(launch.source), data);
    } catch (error) {
      failed.push(`${launch.name}: ${error.message}`);
    }
    if (faults.length) failed.push(`${launch.name}: ${faults.splice(0).join('; ')}`);
    done += 1;
  }
  const { vendor, architecture } = adapter.info;
  const values = launches.flatMap(({ buffers }) => buffers).reduce((sum, { after }) => sum + (after ? after[1] / 4 : 0), 0);
  return { adapter: `${vendor} ${architecture}`, launches: launches.length, kernels: pipelines.size, values, others, failed };
}
