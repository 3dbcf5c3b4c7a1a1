//! Writes the launches of the self-test with all their data, for a browser or another driver.
//!
//! `cargo run --release --example trace -- DIR [SEED [SHAPES]]` runs the checks on small shapes
//! with the kernels that every WebGPU device can run, and writes `DIR/launches.json` (kernels,
//! grids, places of buffers) and `DIR/data.bin`. Fails if a check does not pass here.

use std::fmt::Write as _;
use std::fs::File;
use std::io::{BufWriter, Write as _};
use std::path::Path;

use ruvllm_gpu::{Gpu, Selection, Traced, self_test};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut arguments = std::env::args().skip(1);
    let folder = arguments.next().ok_or("a folder is missing")?;
    let mut number = |usual: u64| arguments.next().map_or(Ok(usual), |text| text.parse());
    let (seed, shapes) = (number(1)?, number(70)? as usize);

    let gpu = Gpu::open_plain(&Selection::with_software(), 1 << 30)?;
    gpu.begin_trace();
    let results = self_test::shapes(&gpu, seed, shapes, None)?;
    let launches = gpu.end_trace();
    if let Some(check) = results.checks.iter().find(|check| !check.passed()) {
        return Err(check.to_string().into());
    }
    write(Path::new(&folder), &launches)?;
    println!("{} launches of {} shapes on {}", launches.len(), results.shapes, gpu.info().name);
    Ok(())
}

/// Writes the launches as JSON, with places in a file of all bytes.
fn write(folder: &Path, launches: &[Traced]) -> std::io::Result<()> {
    std::fs::create_dir_all(folder)?;
    let mut data = BufWriter::new(File::create(folder.join("data.bin"))?);
    let mut place = 0;
    let mut put = |bytes: &[u8]| {
        data.write_all(bytes)?;
        let from = place;
        place += bytes.len();
        std::io::Result::Ok(format!("[{from},{}]", bytes.len()))
    };
    let mut text = String::from("[");
    for (index, Traced { name, source, groups, buffers }) in launches.iter().enumerate() {
        let comma = if index > 0 { "," } else { "" };
        let (name, source) = (quoted(name), quoted(source));
        let _ = write!(
            text,
            "{comma}\n{{\"name\":{name},\"source\":{source},\"groups\":[{},{}],\"buffers\":[",
            groups.0, groups.1
        );
        for (index, buffer) in buffers.iter().enumerate() {
            let comma = if index > 0 { "," } else { "" };
            let after = buffer.after.as_deref().map(&mut put).transpose()?.unwrap_or("null".to_owned());
            let _ = write!(text, "{comma}{{\"before\":{},\"after\":{after}}}", put(&buffer.before)?);
        }
        text.push_str("]}");
    }
    text.push_str("\n]\n");
    data.flush()?;
    std::fs::write(folder.join("launches.json"), text)
}

/// A JSON string of text without control characters but line ends.
fn quoted(text: &str) -> String {
    format!("\"{}\"", text.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n"))
}
