//! Signatures of the categories: the kernels that an engine can call without knowing the pack.
//!
//! Tensors, their order, the symbols of their shapes and the parameters are fixed per category; one
//! type, `T`, is the kernel's choice among those of the category:
//!
//! | category | inputs | outputs | parameters | `T` |
//! |---|---|---|---|---|
//! | `rms_norm` | `x[rows, dim]: T`, `weight[dim]: f32` | `y[rows, dim]: T` | `eps: f32` | `f32`, `f16` |
//! | `swiglu` | `gate[n]: T`, `up[n]: T` | `y[n]: T` | | `f32`, `f16` |
//! | `rope` | `x[tokens, heads, dim]: T`, `cos[tokens, pairs]: f32`, `sin[tokens, pairs]: f32` | `y[tokens, heads, dim]: T` | `interleaved: bool` | `f32`, `f16`, `q8_0` |
//! | `kv_pack` | `x[rows, dim]: f32` | `packed[rows, dim]: T` | | `q8_0`, `q4_0` |
//! | `kv_unpack` | `packed[rows, dim]: T` | `x[rows, dim]: f32` | | `q8_0`, `q4_0` |
//! | `lora_apply` | `x[rows, inputs]: f32`, `a[rank, inputs]: T`, `b[outputs, rank]: T`, `base[rows, outputs]: f32` | `y[rows, outputs]: f32` | `scale: f32` | `f32`, `f16` |
//! | `other` | none: no engine calls these | | | |
//!
//! Defaults of parameters may be any or absent: an engine passes every parameter in every call.

use std::fmt;

use crate::error::excerpt;
use crate::manifest::{Category, DType, Dim, Kernel, ParameterType, Tensor};

/// Category of a kernel that an engine can call, and the type `T` of its signature.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Callable {
    /// Operation.
    pub category: Category,
    /// Type `T`: of the packed tensor for `kv_pack` and `kv_unpack`, of the factors for
    /// `lora_apply`, else of inputs and outputs.
    pub dtype: DType,
}

impl fmt::Display for Callable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} of {}", self.category, self.dtype.name())
    }
}

/// Difference between a kernel and the signature of its category.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Mismatch {
    /// The category has no signature.
    #[error("kernels of the category {category} have no signature; only their id tells their use")]
    NoSignature {
        /// The category.
        category: Category,
    },
    /// Another number of inputs, outputs or parameters.
    #[error("it has {found} {what}, the signature of {category} has {expected}")]
    Count {
        /// The category.
        category: Category,
        /// Items that are counted.
        what: &'static str,
        /// Number in the manifest.
        found: usize,
        /// Number in the signature.
        expected: usize,
    },
    /// Another name, or the names in another order.
    #[error("{what} {index} has the name {found:?}, the signature has {expected:?}")]
    Name {
        /// Kind of item: `input`, `output` or `parameter`.
        what: &'static str,
        /// Its index, from 0.
        index: usize,
        /// Beginning of the name in the manifest.
        found: String,
        /// Name in the signature.
        expected: &'static str,
    },
    /// Another shape, or other symbols.
    #[error("{tensor} has the shape [{found}], the signature has [{expected}]")]
    Shape {
        /// Name of the tensor.
        tensor: &'static str,
        /// Beginning of the shape in the manifest.
        found: String,
        /// Shape in the signature.
        expected: String,
    },
    /// A type that the category does not have, or not beside the other tensors of the kernel.
    #[error("{tensor} has the type {}, the signature allows {expected}", found.name())]
    Type {
        /// Name of the tensor.
        tensor: &'static str,
        /// Type in the manifest.
        found: DType,
        /// Types in the signature.
        expected: String,
    },
    /// A parameter of another type.
    #[error("the parameter {parameter} has the type {}, the signature has {}", found.name(), expected.name())]
    Parameter {
        /// Name of the parameter.
        parameter: &'static str,
        /// Type in the manifest.
        found: ParameterType,
        /// Type in the signature.
        expected: ParameterType,
    },
}

/// Type of a tensor in a signature.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Type {
    /// The type that the kernel chooses.
    Own,
    /// 32-bit floating point.
    F32,
}

/// Tensor in a signature.
struct Slot {
    name: &'static str,
    ty: Type,
    shape: &'static [&'static str],
}

/// Signature of a category.
struct Signature {
    inputs: &'static [Slot],
    outputs: &'static [Slot],
    parameters: &'static [(&'static str, ParameterType)],
    /// Choices for [`Type::Own`].
    types: &'static [DType],
}

const fn own(name: &'static str, shape: &'static [&'static str]) -> Slot {
    Slot { name, ty: Type::Own, shape }
}

const fn f32(name: &'static str, shape: &'static [&'static str]) -> Slot {
    Slot { name, ty: Type::F32, shape }
}

const FLOATS: &[DType] = &[DType::F32, DType::F16];
const PACKED: &[DType] = &[DType::Q8_0, DType::Q4_0];

const RMS_NORM: Signature = Signature {
    inputs: &[own("x", &["rows", "dim"]), f32("weight", &["dim"])],
    outputs: &[own("y", &["rows", "dim"])],
    parameters: &[("eps", ParameterType::F32)],
    types: FLOATS,
};

const SWIGLU: Signature = Signature {
    inputs: &[own("gate", &["n"]), own("up", &["n"])],
    outputs: &[own("y", &["n"])],
    parameters: &[],
    types: FLOATS,
};

const ROPE: Signature = Signature {
    inputs: &[
        own("x", &["tokens", "heads", "dim"]),
        f32("cos", &["tokens", "pairs"]),
        f32("sin", &["tokens", "pairs"]),
    ],
    outputs: &[own("y", &["tokens", "heads", "dim"])],
    parameters: &[("interleaved", ParameterType::Bool)],
    types: &[DType::F32, DType::F16, DType::Q8_0],
};

const KV_PACK: Signature = Signature {
    inputs: &[f32("x", &["rows", "dim"])],
    outputs: &[own("packed", &["rows", "dim"])],
    parameters: &[],
    types: PACKED,
};

const KV_UNPACK: Signature = Signature {
    inputs: &[own("packed", &["rows", "dim"])],
    outputs: &[f32("x", &["rows", "dim"])],
    parameters: &[],
    types: PACKED,
};

const LORA_APPLY: Signature = Signature {
    inputs: &[
        f32("x", &["rows", "inputs"]),
        own("a", &["rank", "inputs"]),
        own("b", &["outputs", "rank"]),
        f32("base", &["rows", "outputs"]),
    ],
    outputs: &[f32("y", &["rows", "outputs"])],
    parameters: &[("scale", ParameterType::F32)],
    types: FLOATS,
};

/// Signature of a category; `None` for `other`.
fn signature(category: Category) -> Option<&'static Signature> {
    match category {
        Category::RmsNorm => Some(&RMS_NORM),
        Category::Swiglu => Some(&SWIGLU),
        Category::Rope => Some(&ROPE),
        Category::KvPack => Some(&KV_PACK),
        Category::KvUnpack => Some(&KV_UNPACK),
        Category::LoraApply => Some(&LORA_APPLY),
        Category::Other => None,
    }
}

impl Callable {
    /// All kernels that an engine can call.
    pub fn all() -> impl Iterator<Item = Self> {
        Category::ALL.into_iter().flat_map(|category| {
            let types = signature(category).map_or(&[][..], |signature| signature.types);
            types.iter().map(move |&dtype| Self { category, dtype })
        })
    }
}

impl Kernel {
    /// Category and type under which an engine can call the kernel.
    ///
    /// # Errors
    /// The first difference from the [signature](crate::signature) of its category.
    pub fn callable(&self) -> Result<Callable, Mismatch> {
        let category = self.category;
        let signature = signature(category).ok_or(Mismatch::NoSignature { category })?;
        let mut own = None;
        let pairs = [
            ("input", "inputs", &self.inputs, signature.inputs),
            ("output", "outputs", &self.outputs, signature.outputs),
        ];
        for (what, plural, found, expected) in pairs {
            check_count(category, plural, found.len(), expected.len())?;
            for (index, (tensor, slot)) in found.iter().zip(expected).enumerate() {
                check_name(what, index, &tensor.name, slot.name)?;
                check_shape(tensor, slot)?;
                check_type(tensor, slot, signature, &mut own)?;
            }
        }
        check_count(category, "parameters", self.parameters.len(), signature.parameters.len())?;
        for (index, (found, &(name, expected))) in
            self.parameters.iter().zip(signature.parameters).enumerate()
        {
            check_name("parameter", index, &found.name, name)?;
            if found.kind != expected {
                return Err(Mismatch::Parameter { parameter: name, found: found.kind, expected });
            }
        }
        // Every signature has a tensor of the kernel's own type.
        own.map(|dtype| Callable { category, dtype }).ok_or(Mismatch::NoSignature { category })
    }
}

fn check_count(
    category: Category,
    what: &'static str,
    found: usize,
    expected: usize,
) -> Result<(), Mismatch> {
    if found == expected { Ok(()) } else { Err(Mismatch::Count { category, what, found, expected }) }
}

fn check_name(what: &'static str, index: usize, found: &str, expected: &'static str) -> Result<(), Mismatch> {
    if found == expected {
        return Ok(());
    }
    Err(Mismatch::Name { what, index, found: excerpt(found), expected })
}

fn check_shape(tensor: &Tensor, slot: &Slot) -> Result<(), Mismatch> {
    let is_symbol = |(dim, name): (&Dim, &&str)| matches!(dim, Dim::Symbol(symbol) if symbol == name);
    if tensor.shape.len() == slot.shape.len() && tensor.shape.iter().zip(slot.shape).all(is_symbol) {
        return Ok(());
    }
    let found: Vec<String> = tensor.shape.iter().map(Dim::to_string).collect();
    let (found, expected) = (excerpt(&found.join(", ")), slot.shape.join(", "));
    Err(Mismatch::Shape { tensor: slot.name, found, expected })
}

/// Checks a type against the signature and the kernel's earlier tensors: `own` is the type of
/// those.
fn check_type(
    tensor: &Tensor,
    slot: &Slot,
    signature: &Signature,
    own: &mut Option<DType>,
) -> Result<(), Mismatch> {
    let one;
    let expected = match (slot.ty, *own) {
        (Type::F32, _) => &[DType::F32],
        (Type::Own, None) => signature.types,
        (Type::Own, Some(dtype)) => {
            one = [dtype];
            &one[..]
        }
    };
    if !expected.contains(&tensor.dtype) {
        let names: Vec<&str> = expected.iter().map(|dtype| dtype.name()).collect();
        let expected = names.join(", ");
        return Err(Mismatch::Type { tensor: slot.name, found: tensor.dtype, expected });
    }
    if slot.ty == Type::Own {
        *own = Some(tensor.dtype);
    }
    Ok(())
}
