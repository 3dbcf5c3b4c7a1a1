//! Times of products over tiles: the measurements behind `Tile::choose`.

use ruvllm_gpu::{Error, Format, Gpu, Matrix, Result, Tile};

use crate::measure::{heat, seconds_of};
use crate::products::{Bed, ROTATION};

/// Prints the best tiles of each format, shape and batch, and the chosen one.
pub(crate) fn run(gpu: &Gpu, peak: f64, quick: bool) -> Result<()> {
    let shapes: &[(u32, u32)] =
        if quick { &[(64, 2048)] } else { &[(14_336, 4096), (4096, 14_336), (2048, 2048)] };
    for &(rows, cols) in shapes {
        for format in Format::ALL {
            let bed = Bed::new(gpu, format, rows, cols, if quick { 0 } else { ROTATION })?;
            for batch in [1, 8] {
                sweep(gpu, peak, quick, &bed, batch)?;
            }
        }
    }
    Ok(())
}

fn sweep(gpu: &Gpu, peak: f64, quick: bool, bed: &Bed, batch: u32) -> Result<()> {
    let (format, rows, cols) = (bed.copies[0].format(), bed.copies[0].rows(), bed.copies[0].cols());
    let operands = bed.operands(gpu, batch)?;
    let chosen = Tile::choose(format, cols, batch, gpu.target());
    let tiles = candidates(batch, gpu.target().subgroup.unwrap_or(1));
    let prepare = |tile: Tile| {
        let launch = |matrix: &Matrix| matrix.product_with(gpu, &operands.x, &operands.y, batch, tile);
        bed.copies.iter().map(launch).collect::<Result<Vec<_>>>()
    };
    compile(&tiles, |tile| prepare(tile).map(|_| ()));
    let mut results = Vec::new();
    for (index, &tile) in tiles.iter().enumerate() {
        let launches = match prepare(tile) {
            Err(Error::Shape { .. }) => continue, // exceeds the device
            other => other?,
        };
        let launches: Vec<_> = launches.iter().collect();
        if index == 0 {
            heat(gpu, &launches, quick)?;
        }
        let seconds = seconds_of(gpu, &launches, (2, 5), quick)?;
        results.push((tile, bed.copies[0].bytes() as f64 / seconds.median / 1e9));
    }
    results.sort_by(|a, b| b.1.total_cmp(&a.1));
    let text = |(tile, rate): &(Tile, f64)| {
        let Tile { rows, lanes, teams, unroll } = tile;
        format!("r{rows} l{lanes} t{teams} u{unroll} {rate:.0} ({:.0}%)", 100.0 * rate / peak)
    };
    println!("{} {rows} x {cols} batch {batch}: {} tiles", format.name(), results.len());
    for lanes in [32, 64, 128, 256] {
        let of_lanes: Vec<_> = results.iter().filter(|(t, _)| t.lanes == lanes).take(5).map(text).collect();
        println!("  {}", of_lanes.join("; "));
    }
    if let Some(result) = results.iter().find(|(tile, _)| *tile == chosen) {
        println!("  chosen {}", text(result));
    }
    Ok(())
}

/// Compiles kernels on several threads, before the device heats up.
fn compile(tiles: &[Tile], prepare: impl Fn(Tile) -> Result<()> + Sync) {
    std::thread::scope(|scope| {
        for part in tiles.chunks(tiles.len().div_ceil(8)) {
            let prepare = &prepare;
            // A failure comes again where the tile is measured.
            scope.spawn(move || part.iter().for_each(|&tile| drop(prepare(tile))));
        }
    });
}

fn candidates(batch: u32, smallest: u32) -> Vec<Tile> {
    let mut tiles = Vec::new();
    for lanes in [32, 64, 128, 256] {
        for teams in [1, 2, 4] {
            for rows in [1, 2, 4] {
                for unroll in [1, 2, 4] {
                    let loads = rows * unroll;
                    let sums = rows * batch;
                    let threads = lanes * teams;
                    if lanes >= smallest
                        && (64..=128.max(lanes)).contains(&threads)
                        && loads <= 8
                        && sums <= 32
                    {
                        tiles.push(Tile { rows, lanes, teams, unroll });
                    }
                }
            }
        }
    }
    tiles
}
