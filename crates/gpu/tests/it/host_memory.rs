//! Memory of the host that kernels use, and copies among launches.

use ruvllm_gpu::{Error, Format, KvBlocks, KvFormat, Matrix, Memory, Quantized};

use crate::gpu_with;

/// `rows` rows of 64 values in `Q8_0`.
fn weights(rows: usize) -> Vec<u8> {
    let block = |index: usize| {
        let scale = half::f16::from_f32(0.01 + index as f32 * 1e-3).to_le_bytes();
        scale.into_iter().chain((0..32).map(move |i| (i * 7 + index * 13) as u8))
    };
    (0..rows * 2).flat_map(block).collect()
}

#[test]
fn memory_of_the_host_is_outside_the_budget() {
    let Some(gpu) = gpu_with(1024) else { return };
    let buffer = gpu.zeroed_in(Memory::Host, 5001).expect("memory of the host");
    assert_eq!((gpu.used(), gpu.host_used()), (0, 5008));
    let bytes: Vec<u8> = (0..5001).map(|i| (i % 251) as u8).collect();
    gpu.write(&buffer, &bytes).expect("written");
    drop(buffer);
    assert_eq!(gpu.host_used(), 0);
    assert!(matches!(gpu.zeroed_in(Memory::Device, 5001), Err(Error::OverBudget { .. })));
}

#[test]
fn products_with_weights_in_memory_of_the_host_have_the_same_bits() {
    let Some(gpu) = gpu_with(1 << 22) else { return };
    let (rows, bytes) = (48, weights(48));
    let device = Matrix::upload(&gpu, Format::Q8_0, rows, 64, &bytes).expect("a matrix");
    let host = Matrix::zeroed_in(&gpu, Memory::Host, Format::Q8_0, rows, 64).expect("a matrix");
    host.write(&gpu, &bytes).expect("written");
    let staged = Matrix::zeroed(&gpu, Format::Q8_0, rows, 64).expect("a matrix");
    let values: Vec<f32> = (0..8 * 64).map(|i| ((i * 37 % 101) as f32 - 50.0) / 50.0).collect();
    let x = gpu.upload(&values).expect("rows");
    let quantized = Quantized::new(&gpu, 8, 64).expect("rows");
    let y = gpu.zeroed(8 * u64::from(rows) * 4).expect("an output");

    let quantize = gpu.quantize(&x, &quantized).expect("a launch");
    let copies = host.copy_to(&gpu, &staged).expect("copies");
    let activations = quantized.clone().into();
    let product = |matrix: &Matrix| {
        let launch = matrix.product(&gpu, &activations, &y, 8).expect("a launch");
        // Copies stand between kernels, in order.
        let list: Vec<_> = [&quantize].into_iter().chain(&copies).chain([&launch]).collect();
        gpu.run(&list).expect("run");
        gpu.download::<u32>(&y).expect("values")
    };
    let expected = product(&device);
    assert!(expected.iter().any(|&bits| bits != 0));
    assert_eq!(product(&host), expected);
    assert_eq!(product(&staged), expected);

    let other = Matrix::zeroed(&gpu, Format::Q8_0, rows, 32).expect("a matrix");
    assert!(matches!(host.copy_to(&gpu, &other), Err(Error::Shape { .. })));
}

#[test]
fn blocks_are_copied_between_device_and_host() {
    let Some(gpu) = gpu_with(1 << 22) else { return };
    for format in KvFormat::ALL {
        let blocks = |memory, n| KvBlocks::new_in(&gpu, memory, format, n, 2, 32).expect("blocks");
        let (device, host) = (blocks(Memory::Device, 6), blocks(Memory::Host, 4));
        let words = (device.block_bytes() / 4) as usize;
        let content = |from: u32| (0..6 * words as u32).map(|i| from + i).collect::<Vec<_>>();
        gpu.write(device.keys(), &content(1)).expect("written");
        gpu.write(device.values().expect("values"), &content(70_000)).expect("written");
        // Two runs of neighbours, and one alone.
        let pairs = [(1, 2), (2, 3), (5, 0), (0, 1)];
        gpu.copy_blocks(&[(&device, &host)], &pairs).expect("copied");
        gpu.fill(device.keys(), &[0_u32]).expect("filled");
        gpu.fill(device.values().expect("values"), &[0_u32]).expect("filled");
        gpu.copy_blocks(&[(&host, &device)], &pairs.map(|(from, to)| (to, from))).expect("copied");
        for (buffer, first) in [(device.keys(), 1), (device.values().expect("values"), 70_000)] {
            let mut expected = content(first);
            for block in [3, 4] {
                expected[block * words..][..words].fill(0);
            }
            assert!(gpu.download::<u32>(buffer).expect("values") == expected, "{}", format.name());
        }
        for pair in [(6, 0), (0, 4)] {
            let error = gpu.copy_blocks(&[(&device, &host)], &[pair]);
            assert!(matches!(error, Err(Error::Shape { .. })), "{pair:?}: {error:?}");
        }
    }
}
