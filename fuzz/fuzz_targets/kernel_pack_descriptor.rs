//! Binds and calls kernels of any form in the sandbox: manifests with symbols and parameters, sizes
//! that are absent, unknown or too large, batches with wrong lengths and foreign requests, both
//! directions. The kernel returns the descriptors that it got: all areas are aligned, within its
//! memory and apart from each other, and have the sizes of the request.

#![no_main]

use std::collections::BTreeMap;
use std::fs;
use std::sync::LazyLock;

use libfuzzer_sys::arbitrary::{self, Arbitrary};
use libfuzzer_sys::fuzz_target;
use ruvllm_kernel_packs::manifest::{self, ParameterType, ParameterValue};
use ruvllm_kernel_packs::sandbox::{Binding, Direction, Fault, Job, Kernel, Sandbox, SandboxOptions};
use ruvllm_kernel_packs::{Contents, Host, Pack, Policy, PrivateKey, TrustedKey, TrustedKeys, Version};
use serde_json::{Value, json};

/// Bytes of the first input and the first output, in which the kernel returns descriptors.
const REPORT: usize = 1024;
/// Byte that the kernel writes to all other outputs.
const FILL: u8 = 0xc3;
/// Largest sum of inputs and outputs that is called.
const MOST_BYTES: usize = 1 << 20;

const DTYPES: [&str; 9] = ["f32", "f16", "bf16", "i8", "u8", "i32", "u32", "q8_0", "q4_0"];
const TYPES: [&str; 6] = ["bool", "i32", "u32", "i64", "f32", "f64"];
/// Symbols, and names of parameters: an integer parameter of this name is the size.
const NAMES: [&str; 5] = ["a", "b", "c", "d", "e"];

static SANDBOX: LazyLock<Sandbox> =
    LazyLock::new(|| Sandbox::new(SandboxOptions::default()).expect("a sandbox"));

#[derive(Debug, Arbitrary)]
struct Input {
    inputs: Vec<Tensor>,
    outputs: Vec<Tensor>,
    parameters: Vec<Parameter>,
    memory_pages: u8,
    scratch: Size,
    has_heap_base: bool,
    requests: [Request; 2],
    jobs: Vec<Call>,
}

#[derive(Debug, Arbitrary)]
struct Tensor {
    dtype: u8,
    shape: Vec<Dim>,
}

#[derive(Debug, Arbitrary)]
enum Dim {
    Symbol(u8),
    Blocks(u8),
    Size(u32),
}

#[derive(Debug, Arbitrary)]
struct Parameter {
    name: u8,
    kind: u8,
    default: Option<i32>,
}

#[derive(Debug, Arbitrary)]
struct Request {
    is_backward: bool,
    /// Choice of a fault.
    fault: u8,
    /// Sizes of the symbols that tensors have, and values of parameters.
    sizes: [Size; NAMES.len()],
    more_sizes: Vec<(u8, Size)>,
    more_values: Vec<(u8, Number)>,
}

#[derive(Debug, Arbitrary)]
enum Size {
    Small(u8),
    Blocks(u8),
    Any(u64),
}

impl Size {
    fn value(&self) -> u64 {
        match self {
            Self::Small(size) => u64::from(size % 16) + 1,
            Self::Blocks(blocks) => 32 * (u64::from(blocks % 4) + 1),
            Self::Any(size) if size % 16 == 0 => *size,
            Self::Any(size) => size % 1024 + 1,
        }
    }
}

#[derive(Debug, Arbitrary)]
enum Number {
    Bool(bool),
    Integer(i64),
    Float(f64),
}

/// A request of a batch: its binding, one of them of another kernel, and a change of its lengths.
#[derive(Debug, Arbitrary)]
struct Call {
    binding: u8,
    tensor: u8,
    change: Option<i8>,
}

fn name(index: u8) -> &'static str {
    NAMES[usize::from(index) % NAMES.len()]
}

/// Tensors of a list behind the report. Most have shapes that a manifest may have: symbols of
/// `known` alone, and whole quant blocks.
fn tensors(first: &str, list: &[Tensor], known: &[&str]) -> Vec<Value> {
    let tensor = |(index, tensor): (usize, &Tensor)| {
        let dtype = DTYPES[usize::from(tensor.dtype) % DTYPES.len()];
        let shape = tensor.shape.iter().take(3).map(|dim| match dim {
            Dim::Symbol(symbol) if known.contains(&name(*symbol)) => json!(name(*symbol)),
            Dim::Symbol(symbol) | Dim::Blocks(symbol) => json!(32 * (u32::from(*symbol) % 4 + 1)),
            Dim::Size(size) if size % 61 == 0 => json!(size),
            Dim::Size(size) => json!(size % 61),
        });
        let block = ["q8_0", "q4_0"].contains(&dtype).then(|| json!(32));
        let shape: Vec<Value> = shape.chain(block).collect();
        json!({"name": format!("{first}{index}"), "dtype": dtype, "shape": shape})
    };
    let report = json!({"name": first, "dtype": "u8", "shape": [REPORT]});
    std::iter::once(report).chain(list.iter().take(6).enumerate().map(tensor)).collect()
}

/// Parameters with names of their own, few of them those of symbols.
fn parameters(input: &Input) -> BTreeMap<String, Value> {
    let parameter = |(index, parameter): (usize, &Parameter)| {
        let is_size = parameter.name.is_multiple_of(8);
        let name = if is_size { name(parameter.name / 8).to_owned() } else { format!("p{index}") };
        let kind = TYPES[usize::from(parameter.kind) % TYPES.len()];
        let mut value = json!({"name": name, "type": kind});
        if let Some(default) = parameter.default {
            value["default"] = if kind == "bool" { json!(default % 2 == 0) } else { json!(default) };
        }
        (name, value)
    };
    input.parameters.iter().take(5).enumerate().map(parameter).collect()
}

fn manifest(input: &Input) -> Value {
    let of_inputs = input.inputs.iter().take(6).flat_map(|tensor| tensor.shape.iter().take(3));
    let symbols: Vec<&str> = of_inputs
        .filter_map(|dim| match dim {
            Dim::Symbol(symbol) => Some(name(*symbol)),
            _ => None,
        })
        .collect();
    let parameters: Vec<Value> = parameters(input).into_values().collect();
    json!({
        "schema_version": 1, "name": "fuzz", "version": "1.0.0", "description": "Fuzz",
        "min_runtime_version": "0.1.0", "created": "2026-11-28",
        "author": {"name": "Acme", "email": "kernels@acme.example"},
        "kernels": [{
            "id": "kernel", "name": "Kernel", "category": "other", "path": "kernel.wasm",
            "inputs": tensors("x", &input.inputs, &NAMES),
            "outputs": tensors("y", &input.outputs, &symbols),
            "parameters": parameters, "limits": {"memory_pages": 1 + u32::from(input.memory_pages)},
            "platforms": {"wasmtime": {"min_version": "48.0.0", "features": ["bulk_memory"]}}
        }]
    })
}

/// Kernel that returns the size of its memory and all descriptors in the output of the first
/// request, and fills the outputs of the others; the gradient does the same.
fn module(scratch: u32, has_heap_base: bool) -> Vec<u8> {
    let scratch: String = scratch.to_le_bytes().iter().map(|byte| format!("\\{byte:02x}")).collect();
    let base = if has_heap_base { r#"(global (export "__heap_base") i32 (i32.const 48))"# } else { "" };
    let text = format!(
        r#"(module (memory (export "memory") 1) {base}
        (data (i32.const 0) "\01\00\00\00{scratch}\00\00\00\00\00\00\00\00")
        (func (export "kernel_info") (result i32) (i32.const 0))
        (func $all (export "kernel_forward") (export "kernel_backward")
            (param $d i32) (param $n i32) (result i32) (local $out i32)
          (local.set $out (i32.load offset=16 (local.get $d)))
          (i32.store (local.get $out) (i32.shl (memory.size) (i32.const 16)))
          (i32.store offset=4 (local.get $out) (local.get $d))
          (i32.store offset=8 (local.get $out) (local.get $n))
          (memory.copy (i32.add (local.get $out) (i32.const 16)) (local.get $d)
            (i32.mul (local.get $n) (i32.const 40)))
          (loop $next
            (if (i32.eqz (local.tee $n (i32.sub (local.get $n) (i32.const 1)))) (then (return (i32.const 0))))
            (local.set $d (i32.add (local.get $d) (i32.const 40)))
            (memory.fill (i32.load offset=16 (local.get $d)) (i32.const {FILL})
              (i32.load offset=20 (local.get $d)))
            (br $next))
          (unreachable)))"#
    );
    wat::parse_str(text).expect("a module")
}

fn pack(input: &Input) -> Option<Pack> {
    let folder = tempfile::tempdir().expect("a folder");
    fs::write(folder.path().join("kernels.json"), manifest(input).to_string()).expect("a manifest");
    fs::write(folder.path().join("kernel.wasm"), module(input.scratch.value() as u32, input.has_heap_base))
        .expect("a module");
    let key = PrivateKey::from_bytes(&[7; 32]);
    let keys = TrustedKeys::new(vec![TrustedKey::new("Acme", key.public_key())], None).expect("a key");
    let host = Host { version: Version::new(0, 1, 0), engine: Some(Sandbox::engine()) };
    let contents = Contents::build(folder.path(), Some(&key)).ok()?;
    contents.verify(Policy { keys: &keys, host: &host, now: None }).ok()
}

/// Binds a request. Most have a size for each symbol and a value for each parameter; of eight, one
/// has others too, and one lacks a size.
fn bind(kernel: &Kernel, request: &Request) -> Option<Binding> {
    let form = kernel.manifest();
    let tensors = form.inputs.iter().chain(&form.outputs);
    let dims: Vec<String> = tensors.flat_map(|tensor| &tensor.shape).map(ToString::to_string).collect();
    let is_parameter = |symbol: &str| form.parameters.iter().any(|parameter| parameter.name == symbol);
    let omitted = (request.fault % 8 == 1).then(|| name(request.fault / 8));
    let sizes = NAMES.into_iter().zip(&request.sizes).map(|(symbol, size)| (symbol, size.value()));
    let mut sizes: Vec<(&str, u64)> = sizes
        .filter(|(symbol, _)| dims.iter().any(|dim| dim == symbol) && !is_parameter(symbol))
        .filter(|(symbol, _)| omitted != Some(*symbol))
        .collect();
    let value = |(parameter, size): (&manifest::Parameter, &Size)| {
        let size = size.value();
        let value = match parameter.kind {
            ParameterType::Bool => ParameterValue::Bool(size % 2 == 0),
            ParameterType::F32 | ParameterType::F64 => ParameterValue::Number(size as f64),
            _ => ParameterValue::Integer(size as i64),
        };
        (parameter.name.clone(), value)
    };
    let mut values: Vec<(String, ParameterValue)> =
        form.parameters.iter().zip(&request.sizes).map(value).collect();
    if request.fault % 8 == 2 {
        sizes.extend(request.more_sizes.iter().take(3).map(|(symbol, size)| (name(*symbol), size.value())));
        values.extend(request.more_values.iter().take(3).map(|(parameter, value)| {
            let value = match value {
                Number::Bool(value) => ParameterValue::Bool(*value),
                Number::Integer(value) => ParameterValue::Integer(*value),
                Number::Float(value) => ParameterValue::Number(*value),
            };
            (name(*parameter).to_owned(), value)
        }));
    }
    let values: Vec<(&str, ParameterValue)> =
        values.iter().map(|(name, value)| (name.as_str(), *value)).collect();
    let direction = if request.is_backward { Direction::Backward } else { Direction::Forward };
    kernel.bind_direction(direction, &sizes, &values).ok()
}

/// Inputs and outputs of a request with one length changed; true if it was.
fn buffers(binding: &Binding, call: &Call) -> (Vec<Vec<u8>>, Vec<Vec<u8>>, bool) {
    let mut inputs: Vec<Vec<u8>> = binding.input_bytes().map(|bytes| vec![1; bytes]).collect();
    let mut outputs: Vec<Vec<u8>> = binding.output_bytes().map(|bytes| vec![0; bytes]).collect();
    let change = call.change.filter(|change| *change != 0 && call.binding % 16 == 0);
    let Some(change) = change else { return (inputs, outputs, false) };
    let at = usize::from(call.tensor) % (inputs.len() + outputs.len() + 1);
    let count = inputs.len();
    match inputs.iter_mut().chain(&mut outputs).nth(at) {
        Some(tensor) => tensor.resize(tensor.len().saturating_add_signed(isize::from(change)), 0),
        None if count % 2 == 0 => drop(inputs.pop()),
        None => outputs.push(Vec::new()),
    }
    (inputs, outputs, true)
}

fn word(bytes: &[u8], index: usize) -> usize {
    let word = bytes[4 * index..][..4].try_into().expect("four bytes");
    u32::from_le_bytes(word) as usize
}

/// Checks the descriptors that the kernel returned.
fn check(report: &[u8], bindings: &[&Binding], scratch: u32) {
    let (memory, at, count) = (word(report, 0), word(report, 1), word(report, 2));
    assert_eq!(count, bindings.len());
    let mut areas = vec![(at, 40 * count)];
    for (index, binding) in bindings.iter().enumerate() {
        let of = |area: usize| {
            let index = 4 + 10 * index + 2 * area;
            (word(report, index), word(report, index + 1))
        };
        let all: Vec<(usize, usize)> = (0..5).map(of).collect();
        assert_eq!(all[3].1, scratch as usize);
        let is_whole = |area: (usize, usize), bytes: usize, tensors: usize| {
            area.1 >= bytes && area.1 <= bytes + 15 * tensors
        };
        let inputs: Vec<usize> = binding.input_bytes().collect();
        let outputs: Vec<usize> = binding.output_bytes().collect();
        assert!(is_whole((0, all[0].1 + all[1].1), inputs.iter().sum(), inputs.len()));
        assert!(is_whole(all[2], outputs.iter().sum(), outputs.len()));
        areas.extend(all.into_iter().filter(|(_, bytes)| *bytes > 0));
    }
    areas.sort_unstable();
    for (offset, bytes) in &areas {
        assert!(offset % 16 == 0 && offset + bytes <= memory, "{offset} {bytes} of {memory}");
    }
    for pair in areas.windows(2) {
        assert!(pair[0].0 + pair[0].1 <= pair[1].0, "{pair:?} overlap");
    }
}

fuzz_target!(|input: Input| {
    let Some(pack) = pack(&input) else { return };
    // Another kernel with the same form, whose requests are foreign.
    let (Ok(kernel), Ok(other)) = (SANDBOX.load(&pack, "kernel"), SANDBOX.load(&pack, "kernel")) else {
        return;
    };
    let bindings = [
        bind(&kernel, &input.requests[0]),
        bind(&kernel, &input.requests[1]),
        bind(&other, &input.requests[0]),
    ];
    let calls = input.jobs.iter().take(16);
    let chosen = calls.filter_map(|call| {
        // One of eight is foreign.
        let index = if call.binding % 8 == 7 { 2 } else { usize::from(call.binding) % 2 };
        Some((index, bindings[index].as_ref()?, call))
    });
    let chosen: Vec<(usize, &Binding, &Call)> = chosen.collect();
    let bytes = |(_, binding, _): &(usize, &Binding, &Call)| -> usize {
        binding.input_bytes().chain(binding.output_bytes()).sum()
    };
    if chosen.is_empty() || chosen.iter().map(bytes).sum::<usize>() > MOST_BYTES {
        return;
    }
    let mut is_right = chosen
        .iter()
        .all(|(index, binding, _)| *index != 2 && binding.direction() == chosen[0].1.direction());
    let mut data: Vec<(Vec<Vec<u8>>, Vec<Vec<u8>>)> = Vec::new();
    for (_, binding, call) in &chosen {
        let (inputs, outputs, is_changed) = buffers(binding, call);
        is_right &= !is_changed || {
            let lengths = |list: &[Vec<u8>]| list.iter().map(Vec::len).collect::<Vec<_>>();
            lengths(&inputs) == binding.input_bytes().collect::<Vec<_>>()
                && lengths(&outputs) == binding.output_bytes().collect::<Vec<_>>()
        };
        data.push((inputs, outputs));
    }
    let mut slices: Vec<(Vec<&[u8]>, Vec<&mut [u8]>)> = data
        .iter_mut()
        .map(|(inputs, outputs)| {
            let inputs = inputs.iter().map(Vec::as_slice).collect();
            (inputs, outputs.iter_mut().map(Vec::as_mut_slice).collect())
        })
        .collect();
    let mut jobs: Vec<Job<'_, '_>> = slices
        .iter_mut()
        .zip(&chosen)
        .map(|((inputs, outputs), (_, binding, _))| Job { binding, inputs, outputs })
        .collect();
    let result = kernel.call(&mut jobs);
    drop(jobs);
    drop(slices);
    match result {
        Ok(()) => {
            assert!(is_right, "wrong lengths or foreign requests were accepted");
            let bindings: Vec<&Binding> = chosen.iter().map(|(_, binding, _)| *binding).collect();
            check(&data[0].1[0], &bindings, input.scratch.value() as u32);
            let others = data[1..].iter().flat_map(|(_, outputs)| outputs.iter().flatten());
            assert!(others.into_iter().all(|byte| *byte == FILL), "an output is not the kernel's");
        }
        Err(error) => {
            let is_room = matches!(error.fault(), Some(Fault::Room { .. }));
            let is_argument = matches!(error.fault(), Some(Fault::Argument { .. }));
            assert!(if is_right { is_room } else { is_argument }, "{error}");
            let mut all = data.iter().flat_map(|(_, outputs)| outputs.iter().flatten());
            assert!(all.all(|byte| *byte == 0), "a failed call changed an output");
        }
    }
});
