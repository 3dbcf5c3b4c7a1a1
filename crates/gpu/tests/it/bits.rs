//! Error bounds and properties of bits on random shapes.

use ruvllm_gpu::{Activations, Error, Format, Kernel, LARGEST_VALUES, Matrix, Quantized, Tile, self_test};
use ruvllm_testkit::is_full_run;

use crate::gpu;

#[test]
fn long_rows_and_long_outputs_are_exact() {
    let Some(gpu) = gpu() else { return };
    // Columns beyond one step of all lanes, with a rest; rows beyond the workgroups of one line of
    // the grid.
    for (format, rows, cols) in [
        (Format::Q4K, 5, 14_336),
        (Format::F16, 7, 8232 / 32 * 32),
        (Format::Q8_0, 300_001, 32),
        (Format::Q4_0, 9, 32 * 449),
    ] {
        for check in self_test::product(&gpu, format, rows, cols, 2).unwrap() {
            assert!(check.passed(), "{check}");
        }
    }
}

#[test]
fn batches_of_sequences_have_the_bits_of_each_row_alone() {
    let Some(gpu) = gpu() else { return };
    // The first two have workgroups beyond the weight rows, since the grid has several lines.
    let shapes = [
        (Format::Q8_0, 70_000, 32, 16),
        (Format::Q4_0, 131_104, 32, 2),
        (Format::Q4K, 37, 8192, 24),
        (Format::Q6K, 64, 512, 64),
    ];
    let more = [(Format::Q4_0, 38, 2048, 16), (Format::F16, 21, 1024, 16)];
    let more = more.into_iter().filter(|_| is_full_run());
    for (format, rows, cols, batch) in shapes.into_iter().chain(more) {
        for check in self_test::product(&gpu, format, rows, cols, batch).unwrap() {
            assert!(check.passed(), "{check}");
        }
    }
    let matrix = Matrix::zeroed(&gpu, Format::F16, 4, 64).unwrap();
    for rows in [9, 12, 72] {
        let (x, y) = (gpu.zeroed(rows * 64 * 4).unwrap(), gpu.zeroed(rows * 16).unwrap());
        let error = matrix.product(&gpu, &x.into(), &y, rows as u32).unwrap_err();
        assert!(error.to_string().contains("multiple of 8 up to 64"), "{error}");
    }
}

#[test]
fn argmax_is_the_first_of_equals_in_every_row_of_any_length() {
    let Some(gpu) = gpu() else { return };
    let (inf, nan) = (f32::INFINITY, f32::NAN);
    for (width, values) in [(1, 1), (255, 255), (1030, 1025), (2048, 1023), (5000, 4097), (130_001, 129_999)]
    {
        let row = |places: &[(usize, f32)]| {
            let mut row = vec![-2.0; width];
            for &(at, value) in places {
                row[at % values] = value;
            }
            // Values behind the compared ones are larger.
            row[values..].fill(9.0);
            row
        };
        let rows = [
            row(&[]),
            row(&[(values - 1, 3.5)]),
            row(&[(values - 1, 3.5), (values / 2, 3.5), (values / 3, 3.0)]),
            row(&[(1023, 7.0), (1024, 7.0), (2047, 7.0)]),
            row(&[(values - 1, 0.0), (values / 2, -0.0)]),
            row(&[(0, nan), (1, nan), (2, -inf), (values / 2, 1e-40)]),
            row(&[(3, inf), (values - 1, f32::MAX)]),
            vec![-inf; width],
            vec![nan; width],
        ];
        let first_largest = |row: &Vec<f32>| {
            let largest = row[..values].iter().copied().fold(-inf, f32::max);
            let first = row[..values].iter().position(|&value| value == largest && value > -inf);
            first.map_or(u32::MAX, |index| index as u32)
        };
        let expected: Vec<u32> = rows.iter().map(first_largest).collect();
        let (x, out) = (gpu.upload(&rows.concat()).unwrap(), gpu.upload(&[7; 9]).unwrap());
        let [first, merge] = gpu.argmax(&x, values as u32, &out).unwrap();
        gpu.run(&[&first, &merge]).unwrap();
        assert_eq!(gpu.download::<u32>(&out).unwrap(), expected, "{values} of {width}");
    }
}

#[test]
fn the_largest_values_are_sorted_and_equal_ones_by_index() {
    let Some(gpu) = gpu() else { return };
    let inf = f32::INFINITY;
    let list = LARGEST_VALUES as usize;
    // One list, lists of lists, and lists of these.
    let shapes = [(64, 63), (1030, 1025), (20_000, 17_000)];
    let more = [(1, 1), (1024, 1024)].into_iter().filter(|_| is_full_run());
    for (width, values) in shapes.into_iter().chain(more) {
        let falling: Vec<f32> = (0..width).map(|i| -(i as f32)).collect();
        let rising: Vec<f32> = (0..width).map(|i| i as f32).collect();
        let zeros: Vec<f32> = (0..width).map(|i| if i % 3 == 0 { -0.0 } else { 0.0 }).collect();
        let mut rare = vec![-inf; width];
        for (at, value) in [(0, f32::NAN), (values / 2, -3.5), (values - 1, inf)] {
            rare[at] = value;
        }
        let rows = [falling, rising, zeros, rare, vec![f32::NAN; width]];
        let (x, out) = (gpu.upload(&rows.concat()).unwrap(), gpu.zeroed(rows.len() as u64 * 512).unwrap());
        let launches = gpu.largest(&x, values as u32, &out).unwrap();
        gpu.run(&launches.iter().collect::<Vec<_>>()).unwrap();
        let found: Vec<u32> = gpu.download(&out).unwrap();
        for (row, found) in rows.iter().zip(found.chunks_exact(2 * list)) {
            let possible = |&(_, value): &(usize, f32)| value > -inf;
            let mut expected: Vec<_> = row[..values].iter().copied().enumerate().filter(possible).collect();
            expected.sort_by(|a, b| b.1.partial_cmp(&a.1).unwrap().then(a.0.cmp(&b.0)));
            expected.truncate(list);
            let bits = |(at, value): (usize, f32)| (at as u32, value.to_bits());
            let found: Vec<_> = found.chunks_exact(2).map(|pair| (pair[0], pair[1])).collect();
            let (there, rest) = found.split_at(expected.len());
            assert_eq!(there, expected.into_iter().map(bits).collect::<Vec<_>>(), "{values} of {width}");
            assert!(rest.iter().all(|&(_, bits)| bits == (-inf).to_bits()), "{values} of {width}");
        }
    }
}

#[test]
fn bits_depend_on_lanes_only() {
    let Some(gpu) = gpu() else { return };
    let (rows, cols, batch) = (37, 2048, 3);
    for (at, format) in Format::ALL.into_iter().enumerate() {
        let weights = self_test::random_weights(format, (rows * cols) as usize, 5);
        let matrix = Matrix::upload(&gpu, format, rows, cols, &weights).unwrap();
        let values: Vec<f32> = (0..batch * cols).map(|i| (i as f32 * 0.37).sin()).collect();
        let buffer = gpu.upload(&values).unwrap();
        let x: Activations = if format.takes_quantized() {
            let x = Quantized::new(&gpu, batch, cols).unwrap();
            gpu.run(&[&gpu.quantize(&buffer, &x).unwrap()]).unwrap();
            x.into()
        } else {
            buffer.into()
        };
        let y = gpu.zeroed(u64::from(rows * batch) * 4).unwrap();
        let mut results: Vec<Vec<u32>> = Vec::new();
        let tiles = [(2, 1, 2), (4, 2, 1), (3, 1, 4), (1, 4, 3)];
        // Two of them are compared with the first; in a full run all.
        let others = (0..4).filter(|tile| is_full_run() || (tile + at) % 4 < 2).map(|tile| tiles[tile]);
        for (rows, teams, unroll) in std::iter::once((1, 1, 1)).chain(others) {
            let tile = Tile { rows, lanes: 32, teams, unroll };
            let product = matrix.product_with(&gpu, &x, &y, batch, tile).unwrap();
            gpu.run(&[&product]).unwrap();
            results.push(gpu.download(&y).unwrap());
        }
        assert!(results.iter().all(|r| *r == results[0]), "{}", format.name());
    }
}

#[test]
fn kernels_are_compiled_once() {
    let Some(gpu) = gpu() else { return };
    let (x, y) = (gpu.zeroed(64).unwrap(), gpu.zeroed(64).unwrap());
    gpu.add(&x, &y).unwrap();
    gpu.add(&y, &x).unwrap();
    assert_eq!(gpu.compiled(), 1);
    let error = gpu.add(&x, &x.clone()).unwrap_err();
    assert!(matches!(error, Error::Aliased { .. }), "{error}");
}

#[test]
fn names_and_sources_differ_between_keys() {
    let names: Vec<_> = crate::generated::kernels().iter().map(Kernel::name).collect();
    let mut unique = names.clone();
    unique.sort();
    unique.dedup();
    assert_eq!(unique.len(), names.len());
}
