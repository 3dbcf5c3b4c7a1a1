//! Layout of requests in the memory of an instance.

use std::collections::BTreeMap;

use super::fault::Fault;
use super::names::REQUESTS;
use crate::limits::MAX_DIM;
use crate::manifest::{DType, Dim, Kernel, Parameter, ParameterType, ParameterValue, Tensor};

/// Alignment of tensors and descriptors in bytes.
pub(super) const ALIGN: u64 = 16;
/// Bytes of a descriptor.
pub(super) const DESCRIPTOR: u64 = 40;
/// Bytes of a parameter or size in the area of parameters.
const PARAMETER: usize = 8;
/// Offsets are signed for kernels: everything is below this one.
const MAX_OFFSET: u64 = 1 << 31;

/// Offset and size of an area, in the form that kernels read.
#[repr(C)]
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Area {
    /// Offset in bytes from the begin of memory; 0 for an empty area.
    pub offset: u32,
    /// Size in bytes.
    pub bytes: u32,
}

/// Descriptor of one request, in the form that kernels read: ten little-endian `u32`.
#[repr(C)]
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Descriptor {
    /// First input.
    pub input_a: Area,
    /// Other inputs.
    pub input_b: Area,
    /// Outputs.
    pub output: Area,
    /// Memory for the kernel's own use.
    pub scratch: Area,
    /// Parameters, then sizes of symbols.
    pub parameters: Area,
}

const _: () = assert!(size_of::<Descriptor>() == DESCRIPTOR as usize);

impl Descriptor {
    /// The areas in their order.
    pub(super) fn areas(&self) -> [Area; 5] {
        [self.input_a, self.input_b, self.output, self.scratch, self.parameters]
    }

    /// Bytes of the descriptor.
    pub(super) fn to_bytes(self) -> [u8; DESCRIPTOR as usize] {
        let mut bytes = [0; DESCRIPTOR as usize];
        for (area, to) in self.areas().into_iter().zip(bytes.chunks_exact_mut(8)) {
            to[..4].copy_from_slice(&area.offset.to_le_bytes());
            to[4..].copy_from_slice(&area.bytes.to_le_bytes());
        }
        bytes
    }
}

/// Direction of a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Direction {
    /// The manifest's entry point: inputs to outputs.
    Forward,
    /// `kernel_backward`: gradients of outputs, then inputs, to gradients of inputs.
    Backward,
}

/// Place of a tensor in its request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Slot {
    pub(super) name: String,
    pub(super) dtype: DType,
    /// Offset from the begin of the request, a multiple of [`ALIGN`].
    pub(super) offset: u64,
    pub(super) bytes: u64,
}

/// Request with the sizes of its tensors and the values of its parameters, for any number of calls.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Binding {
    /// Number of the kernel.
    pub(super) owner: u64,
    pub(super) direction: Direction,
    pub(super) inputs: Vec<Slot>,
    pub(super) outputs: Vec<Slot>,
    /// Areas with offsets from the begin of the request.
    areas: [(u64, u64); 5],
    pub(super) parameters: Vec<u8>,
    /// Bytes of the request, a multiple of [`ALIGN`].
    pub(super) bytes: u64,
}

/// Next multiple of [`ALIGN`].
pub(super) fn aligned(offset: u64) -> u64 {
    offset.div_ceil(ALIGN) * ALIGN
}

impl Binding {
    /// Layout of a request of the kernel.
    ///
    /// # Errors
    /// [`Fault::Argument`] for sizes and parameters that are absent, unknown, contradictory or out
    /// of range; [`Fault::Room`] for more than 2 GiB.
    pub(super) fn new(
        kernel: &Kernel,
        direction: Direction,
        sizes: &[(&str, u64)],
        values: &[(&str, ParameterValue)],
        scratch: u64,
    ) -> Result<Self, Fault> {
        let (mut parameters, integers) = parameter_area(&kernel.parameters, values)?;
        let sizes = symbol_sizes(kernel, sizes, &integers)?;
        for symbol in symbols(kernel) {
            parameters.extend(sizes[symbol].to_le_bytes());
        }
        let mut end = 0;
        let (a, b, out) = match direction {
            Direction::Forward => {
                let (first, rest) = kernel.inputs.split_at(kernel.inputs.len().min(1));
                (first, rest, &kernel.outputs[..])
            }
            Direction::Backward => (&kernel.outputs[..], &kernel.inputs[..], &kernel.inputs[..]),
        };
        let (mut inputs, area_a) = place(a, &sizes, &mut end)?;
        let (others, area_b) = place(b, &sizes, &mut end)?;
        inputs.extend(others);
        let (outputs, area_out) = place(out, &sizes, &mut end)?;
        let area_scratch = (aligned(end), scratch);
        end = area_scratch.0.saturating_add(scratch);
        check_room(end)?;
        let area_parameters = (aligned(end), parameters.len() as u64);
        let bytes = aligned(area_parameters.0 + area_parameters.1);
        check_room(bytes)?;
        let areas = [area_a, area_b, area_out, area_scratch, area_parameters];
        Ok(Self { owner: 0, direction, inputs, outputs, areas, parameters, bytes })
    }

    /// Direction of the call.
    pub fn direction(&self) -> Direction {
        self.direction
    }

    /// Sizes of the inputs in bytes, in the order in which calls take them.
    pub fn input_bytes(&self) -> impl Iterator<Item = usize> {
        self.inputs.iter().map(|slot| slot.bytes as usize)
    }

    /// Sizes of the outputs in bytes, in the order in which calls take them.
    pub fn output_bytes(&self) -> impl Iterator<Item = usize> {
        self.outputs.iter().map(|slot| slot.bytes as usize)
    }

    /// Descriptor of the request at an offset, checked against the size of the memory.
    ///
    /// # Errors
    /// [`Fault::Area`].
    pub(super) fn descriptor(&self, at: u64, memory: u64) -> Result<Descriptor, Fault> {
        check_area(REQUESTS, at, self.bytes, memory)?;
        // Within the memory, and so below 2^31.
        let [input_a, input_b, output, scratch, parameters] = self.areas.map(|(offset, bytes)| {
            let offset = if bytes == 0 { 0 } else { at + offset };
            Area { offset: offset as u32, bytes: bytes as u32 }
        });
        Ok(Descriptor { input_a, input_b, output, scratch, parameters })
    }

    /// Offset of the area of parameters from the begin of the request.
    pub(super) fn parameters_offset(&self) -> u64 {
        self.areas[4].0
    }
}

/// Checks that an area is within the memory, and below 2 GiB.
///
/// # Errors
/// [`Fault::Area`].
pub(super) fn check_area(what: &'static str, offset: u64, bytes: u64, memory: u64) -> Result<(), Fault> {
    match offset.checked_add(bytes) {
        Some(end) if end <= memory.min(MAX_OFFSET) => Ok(()),
        _ => Err(Fault::Area { what, offset, bytes, memory }),
    }
}

/// Checks the bytes of a request before they are added up further.
fn check_room(need: u64) -> Result<(), Fault> {
    if need > MAX_OFFSET { Err(Fault::Room { need, most: MAX_OFFSET }) } else { Ok(()) }
}

/// Places tensors one behind the other; also the area that they fill.
fn place(
    tensors: &[Tensor],
    sizes: &BTreeMap<&str, u64>,
    end: &mut u64,
) -> Result<(Vec<Slot>, (u64, u64)), Fault> {
    let begin = aligned(*end);
    let mut slots = Vec::with_capacity(tensors.len());
    for tensor in tensors {
        let offset = aligned(*end);
        let bytes = tensor_bytes(tensor, sizes)?;
        *end = offset + bytes;
        check_room(*end)?;
        slots.push(Slot { name: tensor.name.clone(), dtype: tensor.dtype, offset, bytes });
    }
    Ok((slots, (begin, if tensors.is_empty() { 0 } else { *end - begin })))
}

/// Bytes of a tensor, at most 2 GiB.
fn tensor_bytes(tensor: &Tensor, sizes: &BTreeMap<&str, u64>) -> Result<u64, Fault> {
    let mut values = 1u64;
    let mut row = 1;
    for dim in &tensor.shape {
        row = match dim {
            Dim::Size(size) => *size,
            Dim::Symbol(symbol) => sizes[symbol.as_str()],
        };
        values = values.saturating_mul(row);
    }
    let (group, bytes) = tensor.dtype.group();
    if row % group != 0 {
        let why = format!("rows of {row} values are no whole groups of {group}");
        return Err(Fault::argument(&tensor.name, why));
    }
    let bytes = (values / group).saturating_mul(bytes);
    check_room(bytes)?;
    Ok(bytes)
}

/// Symbols of the kernel in the order of their first appearance.
fn symbols(kernel: &Kernel) -> Vec<&str> {
    let mut symbols = Vec::new();
    for dim in kernel.inputs.iter().chain(&kernel.outputs).flat_map(|tensor| &tensor.shape) {
        if let Dim::Symbol(symbol) = dim
            && !symbols.contains(&symbol.as_str())
        {
            symbols.push(symbol.as_str());
        }
    }
    symbols
}

/// Sizes of all symbols: given ones, and integer parameters of the same name.
fn symbol_sizes<'a>(
    kernel: &'a Kernel,
    given: &[(&str, u64)],
    integers: &BTreeMap<&str, i64>,
) -> Result<BTreeMap<&'a str, u64>, Fault> {
    let symbols = symbols(kernel);
    for (index, (name, _)) in given.iter().enumerate() {
        if !symbols.contains(name) {
            return Err(Fault::argument(*name, "no tensor of the kernel has this size"));
        }
        if given[..index].iter().any(|(other, _)| other == name) {
            return Err(Fault::argument(*name, "it is given twice"));
        }
    }
    let mut sizes = BTreeMap::new();
    for symbol in symbols {
        let of_call = given.iter().find(|(name, _)| *name == symbol).map(|(_, size)| *size);
        let of_parameter = integers.get(symbol).map(|value| u64::try_from(*value).unwrap_or(0));
        let size = match (of_call, of_parameter) {
            (Some(size), Some(other)) if size != other => {
                let why = format!("its size is {size}, and the parameter of this name {other}");
                return Err(Fault::argument(symbol, why));
            }
            (Some(size), _) | (None, Some(size)) => size,
            (None, None) => return Err(Fault::argument(symbol, "its size is not given")),
        };
        if size == 0 || size > MAX_DIM {
            return Err(Fault::argument(symbol, format!("{size} is not between 1 and {MAX_DIM}")));
        }
        sizes.insert(symbol, size);
    }
    Ok(sizes)
}

/// Parameters in the form that kernels read, 8 bytes each, and those that may be sizes.
fn parameter_area<'a>(
    parameters: &'a [Parameter],
    given: &[(&str, ParameterValue)],
) -> Result<(Vec<u8>, BTreeMap<&'a str, i64>), Fault> {
    for (index, (name, _)) in given.iter().enumerate() {
        if !parameters.iter().any(|parameter| parameter.name == *name) {
            return Err(Fault::argument(*name, "the kernel has no such parameter"));
        }
        if given[..index].iter().any(|(other, _)| other == name) {
            return Err(Fault::argument(*name, "it is given twice"));
        }
    }
    let mut bytes = Vec::with_capacity(parameters.len() * PARAMETER);
    let mut integers = BTreeMap::new();
    for parameter in parameters {
        let name = parameter.name.as_str();
        let of_call = given.iter().find(|(given, _)| *given == name).map(|(_, value)| *value);
        let value = of_call.or(parameter.default);
        let value = value.ok_or_else(|| Fault::argument(name, "it has no default and no value"))?;
        if !parameter.kind.has(value) {
            let why = format!("{value} is no value of the type {}", parameter.kind.name());
            return Err(Fault::argument(name, why));
        }
        if let ParameterValue::Integer(value) = value
            && matches!(parameter.kind, ParameterType::I32 | ParameterType::U32 | ParameterType::I64)
        {
            integers.insert(name, value);
        }
        bytes.extend(encode(parameter.kind, value));
    }
    Ok((bytes, integers))
}

/// Bytes of a value that the type has, with zeros behind it.
fn encode(kind: ParameterType, value: ParameterValue) -> [u8; PARAMETER] {
    let number = match value {
        ParameterValue::Bool(value) => f64::from(u8::from(value)),
        ParameterValue::Integer(value) => value as f64,
        ParameterValue::Number(value) => value,
    };
    let integer = match value {
        ParameterValue::Bool(value) => i64::from(value),
        ParameterValue::Integer(value) => value,
        ParameterValue::Number(_) => 0,
    };
    let low = |bits: u32| u64::from(bits).to_le_bytes();
    match kind {
        ParameterType::Bool | ParameterType::I32 | ParameterType::U32 => low(integer as u32),
        ParameterType::I64 => integer.to_le_bytes(),
        ParameterType::F32 => low((number as f32).to_bits()),
        ParameterType::F64 => number.to_le_bytes(),
    }
}

impl DType {
    /// Values of a group, and its bytes; groups of 1 for types without groups.
    pub(crate) fn group(self) -> (u64, u64) {
        match self {
            Self::F32 | Self::I32 | Self::U32 => (1, 4),
            Self::F16 | Self::Bf16 => (1, 2),
            Self::I8 | Self::U8 => (1, 1),
            Self::Q8_0 => (32, 34),
            Self::Q4_0 => (32, 18),
        }
    }
}
