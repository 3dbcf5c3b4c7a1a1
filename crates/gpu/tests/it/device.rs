//! Selection, memory accounting, errors.

use ruvllm_gpu::{
    AdapterChoice, AdapterKind, AttentionKernel, Buffer, Error, Format, Gpu, KV_BLOCK_TOKENS, KvBlocks,
    KvFormat, LowRank, LowRankExpansion, LowRankRoom, LowRankRows, Matrix, Quantized, Queries, Selection,
    Sequences, Tile, adapters,
};

use crate::{gpu, gpu_with};

#[test]
fn adapters_are_listed_and_opened_by_index_and_name() {
    let all = adapters();
    for info in &all {
        println!("{info}: {info:?}");
        assert!(!info.name.is_empty() && info.max_binding > 0 && info.max_threads >= 64);
        for adapter in [AdapterChoice::Index(info.index), AdapterChoice::Name(info.name.to_uppercase())] {
            let gpu = Gpu::open(&Selection { adapter, software: true }, 1 << 20).unwrap();
            assert_eq!(gpu.info().name, info.name);
        }
    }
    let missing = Selection { adapter: AdapterChoice::Index(99), software: true };
    let error = Gpu::open(&missing, 1 << 20).unwrap_err();
    assert!(matches!(error, Error::UnknownAdapter { .. } | Error::NoAdapter { .. }), "{error}");
    if all.iter().all(|info| info.kind == AdapterKind::Software) {
        let error = Gpu::open(&Selection::default(), 1 << 20).unwrap_err();
        assert_eq!(error, Error::NoAdapter { software: all.len() });
    }
}

#[test]
fn memory_is_counted_exactly_and_released() {
    let Some(gpu) = gpu_with(10_000) else { return };
    let buffer = gpu.zeroed(1001).unwrap();
    assert_eq!((buffer.len(), gpu.used()), (1001, 1008));
    let clone = buffer.clone();
    drop(buffer);
    assert_eq!(gpu.used(), 1008);
    let free = 10_000 - 1008;
    assert_eq!(gpu.zeroed(9000).unwrap_err(), Error::OverBudget { need: 9008, free, budget: 10_000 });
    drop(clone);
    assert_eq!(gpu.used(), 0);

    // A prepared launch keeps its operands.
    let (x, y) = (gpu.zeroed(64).unwrap(), gpu.zeroed(64).unwrap());
    let launch = gpu.add(&x, &y).unwrap();
    drop((x, y));
    assert_eq!(gpu.used(), 128);
    gpu.run(&[&launch]).unwrap();
    drop(launch);
    assert_eq!(gpu.used(), 0);
}

#[test]
fn a_thousand_uploads_leave_nothing_behind() {
    let Some(gpu) = gpu_with(1 << 20) else { return };
    let weights = vec![1_u8; 34 * 8];
    for _ in 0..1000 {
        let matrix = Matrix::upload(&gpu, Format::Q8_0, 8, 32, &weights).unwrap();
        assert_eq!(matrix.bytes(), weights.len() as u64);
        assert_eq!(gpu.used(), 8 * 32 + 16);
    }
    assert_eq!(gpu.used(), 0);
}

#[test]
fn bytes_come_back_as_they_were() {
    let Some(gpu) = gpu() else { return };
    for n in [0, 1, 3, 4, 17, 1 << 20, (33 << 20) + 5] {
        let bytes: Vec<u8> = (0..n).map(|i| (i * 7 + i / 251) as u8).collect();
        let buffer = gpu.upload(&bytes).unwrap();
        assert!(gpu.download::<u8>(&buffer).unwrap() == bytes, "{n} bytes");
    }
    let buffer = gpu.zeroed(40).unwrap();
    gpu.fill(&buffer, &[1_u32, 2, 3]).unwrap();
    assert_eq!(gpu.download::<u32>(&buffer).unwrap(), [1, 2, 3, 1, 2, 3, 1, 2, 3, 1]);
    assert!(matches!(gpu.write(&buffer, &[0_u32; 11]), Err(Error::Shape { .. })));
    assert!(matches!(gpu.download::<[u32; 3]>(&buffer), Err(Error::Shape { .. })));
}

#[test]
fn wrong_sizes_are_errors() {
    let Some(gpu) = gpu() else { return };
    let is_shape = |error: Error| assert!(matches!(error, Error::Shape { .. }), "{error}");
    is_shape(Matrix::upload(&gpu, Format::Q4K, 1, 128, &[0; 72]).unwrap_err());
    is_shape(Matrix::upload(&gpu, Format::Q8_0, 2, 32, &[0; 67]).unwrap_err());
    is_shape(Matrix::upload(&gpu, Format::Q8_0, 0, 32, &[]).unwrap_err());
    is_shape(Quantized::new(&gpu, 1, 33).unwrap_err());
    let matrix = Matrix::upload(&gpu, Format::Q8_0, 2, 32, &[0; 68]).unwrap();
    let (x, y) = (Quantized::new(&gpu, 1, 32).unwrap(), gpu.zeroed(8).unwrap());
    let float = gpu.zeroed(128).unwrap();
    is_shape(matrix.product(&gpu, &float.clone().into(), &y, 1).unwrap_err());
    is_shape(matrix.product(&gpu, &x.clone().into(), &gpu.zeroed(12).unwrap(), 1).unwrap_err());
    is_shape(matrix.product(&gpu, &x.clone().into(), &y, 0).unwrap_err());
    is_shape(matrix.product(&gpu, &x.clone().into(), &y, 9).unwrap_err());
    let tile = Tile { rows: 1, lanes: 48, teams: 1, unroll: 1 };
    is_shape(matrix.product_with(&gpu, &x.into(), &y, 1, tile).unwrap_err());
    is_shape(gpu.argmax(&gpu.zeroed(10).unwrap(), 1, &gpu.zeroed(4).unwrap()).unwrap_err());
    for values in [0, 3] {
        is_shape(gpu.argmax(&gpu.zeroed(16).unwrap(), values, &gpu.zeroed(8).unwrap()).unwrap_err());
    }
    let larger = gpu.run_reading(&[], &float, gpu.readback(132).unwrap());
    is_shape(larger.unwrap_err());
    for first in [2, 116] {
        is_shape(gpu.run_reading_at(&[], (&float, first), gpu.readback(16).unwrap()).unwrap_err());
    }
    let large = gpu.info().max_binding + 16;
    let error = gpu_with(u64::MAX).unwrap().zeroed(large).unwrap_err();
    assert!(matches!(error, Error::BufferTooLarge { .. }), "{error}");
}

#[test]
fn a_recorded_pass_reads_its_operands_when_it_runs() {
    let Some(gpu) = gpu() else { return };
    let (x, y) = (gpu.upload(&[1.0_f32, 2.0, 3.0, 4.0]).unwrap(), gpu.upload(&[1.0_f32; 4]).unwrap());
    let add = gpu.add(&x, &y).unwrap();
    let reading = gpu.run_reading(&[&add], &x, gpu.readback(16).unwrap()).unwrap();
    let recording = gpu.record_reading(&[&add], &x, &reading).unwrap();
    let unused = gpu.record_reading(&[&add], &x, &reading).unwrap();
    let (first, readback) = gpu.finish::<f32>(reading).unwrap();
    assert_eq!(first, [2.0, 3.0, 4.0, 5.0]);
    gpu.write(&y, &[10.0_f32; 4]).unwrap();
    assert!(recording.is_for(&readback));
    let (second, readback) = gpu.finish::<f32>(gpu.run_recorded(recording, readback).unwrap()).unwrap();
    assert_eq!(second, [12.0, 13.0, 14.0, 15.0]);
    // Recorded and never run, it changes nothing.
    let other = gpu.readback(16).unwrap();
    assert!(!unused.is_for(&other));
    assert!(matches!(gpu.run_recorded(unused, other), Err(Error::Shape { .. })));
    let (third, _) = gpu.finish::<f32>(gpu.run_reading(&[], &x, readback).unwrap()).unwrap();
    assert_eq!(third, [12.0, 13.0, 14.0, 15.0]);
    let reading = gpu.run_reading_at(&[&add], (&x, 4), gpu.readback(8).unwrap()).unwrap();
    assert_eq!(gpu.finish::<f32>(reading).unwrap().0, [23.0, 24.0]);
}

#[test]
fn wrong_sizes_of_attention_are_errors() {
    let Some(gpu) = gpu() else { return };
    let is_shape = |error: Error| assert!(matches!(error, Error::Shape { .. }), "{error}");
    is_shape(KvBlocks::new(&gpu, KvFormat::F16, 1, 1, 12).unwrap_err());
    assert!(KvBlocks::new(&gpu, KvFormat::F16, 1, 1, 80).is_ok());
    let error = KvBlocks::new(&gpu, KvFormat::Q8, 1, 1, 80).unwrap_err();
    assert!(error.to_string().contains("8 bits: expected a positive multiple of 32"), "{error}");
    let kv = KvBlocks::new(&gpu, KvFormat::F16, 16, 2, 32).unwrap();
    let key = AttentionKernel::new(4, 2, 32);
    let sequences = |blocks: usize| Sequences {
        positions: gpu.upload(&[0_u32]).unwrap(),
        table: gpu.upload(&vec![0_u32; blocks]).unwrap(),
    };
    let (queries, none, out) = (gpu.zeroed(512).unwrap(), gpu.zeroed(0).unwrap(), gpu.zeroed(512).unwrap());
    let run = |key: AttentionKernel, blocks: usize, scratch: &Buffer| {
        gpu.attention(key, &queries, &kv, &sequences(blocks), scratch, &out.clone().into())
    };
    assert_eq!(run(key, 8, &none).unwrap().len(), 1);
    let scratch = gpu.zeroed(key.scratch_bytes(1, 16 * KV_BLOCK_TOKENS)).unwrap();
    assert_eq!(run(key, 16, &scratch).unwrap().len(), 2);
    is_shape(run(key, 16, &none).unwrap_err());
    is_shape(run(key, 7, &none).unwrap_err());
    is_shape(run(AttentionKernel::new(4, 1, 32), 8, &none).unwrap_err());
    is_shape(run(AttentionKernel::new(3, 2, 32), 8, &none).unwrap_err());
    is_shape(run(AttentionKernel::new(4, 2, 48), 8, &none).unwrap_err());
    is_shape(run(AttentionKernel { workgroup_heads: Some(3), ..key }, 8, &none).unwrap_err());
    is_shape(run(key.window(0), 8, &none).unwrap_err());
    let sinks = gpu.zeroed(20).unwrap();
    let five = Queries { rows: &queries, sinks: Some(&sinks) };
    let error = gpu.attention(key, five, &kv, &sequences(8), &none, &out.clone().into()).unwrap_err();
    assert!(error.to_string().contains("bytes of the sinks: expected 16, found 20"), "{error}");
    let matrix = Matrix::upload(&gpu, Format::Q8_0, 2, 32, &[0; 68]).unwrap();
    let x = Quantized::new(&gpu, 9, 32).unwrap();
    is_shape(matrix.gemm(&gpu, &x.into(), &gpu.zeroed(64).unwrap(), 9).unwrap_err());
    is_shape(matrix.gather(&gpu, &gpu.zeroed(8).unwrap(), &gpu.zeroed(128).unwrap()).unwrap_err());
}

#[test]
fn wrong_sizes_of_low_rank_updates_are_errors() {
    let Some(gpu) = gpu() else { return };
    let is_shape = |error: Error| assert!(matches!(error, Error::Shape { .. }), "{error}");
    let room =
        LowRankRoom { slots: 2, cols: 32, width: 12, components: 2, expansions: 1, words: 22, f16: true };
    for wrong in [
        LowRankRoom { slots: 0, ..room },
        LowRankRoom { cols: 30, ..room },
        LowRankRoom { components: 0, ..room },
        LowRankRoom { slots: 1 << 16, words: 1 << 16, ..room },
    ] {
        is_shape(LowRank::zeroed(&gpu, wrong).unwrap_err());
    }
    let slots = LowRank::zeroed(&gpu, room).unwrap();
    let (a, b) = ([0.5; 64], [0.25; 24]);
    let part = LowRankExpansion { first: 0, rank: 2, output: 0, outputs: 12, b: &b };
    assert!(slots.write(&gpu, 1, &a, &[part]).is_ok() && slots.clear(&gpu, 0).is_ok());
    is_shape(slots.write(&gpu, 2, &a, &[part]).unwrap_err());
    is_shape(slots.write(&gpu, 0, &a[..33], &[part]).unwrap_err());
    is_shape(slots.write(&gpu, 0, &[0.0; 96], &[part]).unwrap_err());
    is_shape(slots.write(&gpu, 0, &a, &[part, part]).unwrap_err());
    is_shape(slots.write(&gpu, 0, &a, &[LowRankExpansion { first: 1, ..part }]).unwrap_err());
    is_shape(slots.write(&gpu, 0, &a, &[LowRankExpansion { output: 4, ..part }]).unwrap_err());
    is_shape(slots.write(&gpu, 0, &a, &[LowRankExpansion { outputs: 6, b: &b[..12], ..part }]).unwrap_err());
    is_shape(slots.write(&gpu, 0, &a, &[LowRankExpansion { b: &b[..23], ..part }]).unwrap_err());
    is_shape(LowRankRows::new(&gpu, 3, 0, false, 2).unwrap_err());
    is_shape(LowRankRows::new(&gpu, 3, 9, false, 2).unwrap_err());
    let rows = LowRankRows::new(&gpu, 3, 2, false, 2).unwrap();
    let entry = [(0, 1.0); 3];
    is_shape(rows.write(&gpu, &[&entry]).unwrap_err());
    is_shape(rows.write(&gpu, &[&entry[..1]; 4]).unwrap_err());
    let (x, y) = (gpu.zeroed(3 * 128).unwrap(), gpu.zeroed(3 * 48).unwrap());
    assert!(slots.add(&gpu, &x.clone().into(), &rows, &y).is_ok());
    is_shape(slots.add(&gpu, &y.clone().into(), &rows, &y).unwrap_err());
    is_shape(slots.add(&gpu, &x.clone().into(), &rows, &x).unwrap_err());
    let few = LowRankRows::new(&gpu, 3, 2, false, 1).unwrap();
    is_shape(slots.add(&gpu, &x.into(), &few, &y).unwrap_err());
}

#[test]
fn a_lost_device_is_an_error_everywhere() {
    let Some(gpu) = gpu() else { return };
    let (x, y) = (gpu.zeroed(64).unwrap(), gpu.zeroed(64).unwrap());
    let launch = gpu.add(&x, &y).unwrap();
    gpu.destroy();
    let lost = |error: Error| assert!(matches!(error, Error::DeviceLost { .. }), "{error}");
    lost(gpu.run(&[&launch]).unwrap_err());
    lost(gpu.zeroed(16).unwrap_err());
    lost(gpu.download::<f32>(&x).unwrap_err());
    lost(gpu.write(&x, &[1.0_f32]).unwrap_err());
    lost(gpu.add(&x, &y).unwrap_err());
    lost(gpu.wait().unwrap_err());
}
