//! `cargo xtask plots`: the figures in `docs/plots`, drawn from the tables of the pages beside
//! them, so that a plot and its table cannot differ; and the README's session in a terminal.

mod bars;
mod figures;
mod fleet;
mod lines;
mod session;
mod style;
mod tables;

use std::fs;

use xtask::Workspace;

use crate::{Error, Result};
use tables::Page;

const FOLDER: &str = "docs/plots";
const ZEN5: &str = "docs/performance/amd-epyc-zen5.md";
const README: &str = "README.md";
const KV_CACHE: &str = "docs/kv-cache.md";
const SERVER: &str = "docs/server.md";
const SCALE_OUT: &str = "docs/scale-out.md";

/// Every figure as (path, SVG), from the current tables.
///
/// # Errors
/// [`Error::NoFigure`] if a table lacks a number of a plot; other errors if a page cannot be read.
pub fn figures(workspace: &Workspace) -> Result<Vec<(String, String)>> {
    let (zen5, kv_cache) = (Page::read(workspace, ZEN5)?, Page::read(workspace, KV_CACHE)?);
    let scale_out = Page::read(workspace, SCALE_OUT)?;
    let figures = [
        ("speed-peers", figures::speed_peers(&zen5)?),
        ("speed-llama-cpp", figures::speed_llama_cpp(&zen5)?),
        ("decode-depth", figures::decode_depth(&zen5)?),
        ("batch-curve", figures::batch_curve(&zen5)?),
        ("ttft-prefix", figures::ttft_prefix(&kv_cache)?),
        ("kv-quality", figures::kv_quality(&kv_cache)?),
        ("server-soak", figures::server_soak(&Page::read(workspace, SERVER)?)?),
        ("fleet-hits", fleet::hits(&scale_out)?),
        ("fleet-ttft", fleet::time_to_first_token(&scale_out)?),
        ("session", session::session(&Page::read(workspace, README)?)?),
    ];
    Ok(figures.map(|(name, svg)| (format!("{FOLDER}/{name}.svg"), svg)).into())
}

/// Writes every figure that differs from its file.
///
/// # Errors
/// As [`figures`]; if a file cannot be written.
pub fn plots(workspace: &Workspace) -> Result<()> {
    let figures = figures(workspace)?;
    fs::create_dir_all(workspace.path(FOLDER)).map_err(Error::io("create", FOLDER))?;
    for (name, svg) in figures {
        let path = workspace.path(&name);
        if fs::read_to_string(&path).is_ok_and(|old| old == svg) {
            println!("{name}: unchanged");
        } else {
            fs::write(&path, svg).map_err(Error::io("write", path))?;
            println!("{name}: drawn");
        }
    }
    Ok(())
}
