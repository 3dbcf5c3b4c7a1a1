//! Kernels against the limits of a device.

use crate::adapter::AdapterInfo;
use crate::error::{Error, Result, expect_multiple};
use crate::kernel::{Kernel, MAX_BATCH, Product};
use crate::wgsl;

impl Kernel {
    /// Fails when sizes do not fit together or exceed the device.
    pub(crate) fn check(&self, info: &AdapterInfo) -> Result<()> {
        match self {
            Self::Product(p) => check_product(p, info),
            Self::Rows(r) => expect_multiple("columns", if r.quantize { 32 } else { 4 }, r.cols.into()),
            Self::Rope(r) => {
                expect_multiple("rotary dimension", 2, r.rotary_dim.into())?;
                if r.rotary_dim > r.head_dim || r.heads == 0 {
                    let expected = format!("at most {}, at least one head", r.head_dim);
                    return Err(Error::Shape {
                        what: "rotary dimension",
                        expected,
                        found: r.rotary_dim.into(),
                    });
                }
                Ok(())
            }
            Self::Read(n) => expect_multiple("words", 1024, (*n).into()),
            Self::Add(n) | Self::Argmax(n) | Self::ArgmaxMerge(n) => {
                expect_multiple("values", 1, (*n).into())
            }
        }
    }
}

fn check_product(p: &Product, info: &AdapterInfo) -> Result<()> {
    expect_multiple("columns", p.format.column_unit() as u64, p.cols.into())?;
    expect_multiple("rows", 1, p.rows.into())?;
    if p.batch == 0 || p.batch > MAX_BATCH {
        let expected = format!("1 to {MAX_BATCH}");
        return Err(Error::Shape { what: "activation rows", expected, found: p.batch.into() });
    }
    let tile = p.tile;
    let subgroup = info.fixed_subgroup();
    let fits = tile.lanes.is_power_of_two()
        && tile.lanes <= 256
        && subgroup.is_none_or(|size| tile.lanes.is_multiple_of(size))
        && (1..=8).contains(&tile.rows)
        && (1..=8).contains(&tile.teams)
        && (1..=8).contains(&tile.unroll)
        && tile.threads() <= info.max_threads
        && wgsl::product_workgroup_bytes(p, subgroup) <= info.workgroup_memory;
    if fits {
        return Ok(());
    }
    let expected = format!(
        "lanes a power of two of whole subgroups ({subgroup:?}), rows, teams and unroll 1 to 8, at most {} threads \
         and {} bytes of workgroup memory",
        info.max_threads, info.workgroup_memory
    );
    Err(Error::Shape { what: "tile", expected, found: tile.threads().into() })
}
