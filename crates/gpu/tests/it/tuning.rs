//! Tiles that are measured on the device, and their file.

use ruvllm_gpu::{Error, Format, Gpu, Matrix, Selection, Tuned};

/// The best adapter with a folder, or `None` where there is none.
fn gpu_in(folder: &std::path::Path) -> Option<Gpu> {
    crate::gpu()?;
    Some(Gpu::open_cached(&Selection::with_software(), 64 << 20, Some(folder)).expect("it was there"))
}

fn product(gpu: &Gpu, matrix: &Matrix, batch: u32) -> Vec<u32> {
    let values: Vec<f32> =
        (0..batch * matrix.cols()).map(|i| ((i * 37 % 101) as f32 - 50.0) / 50.0).collect();
    let x = gpu.upload(&values).expect("rows");
    let y = gpu.zeroed(u64::from(batch * matrix.rows()) * 4).expect("an output");
    let launch = matrix.product(gpu, &x.into(), &y, batch).expect("a launch");
    gpu.run(&[&launch]).expect("run");
    gpu.download(&y).expect("values")
}

#[test]
fn measured_tiles_are_remembered_and_change_no_bit() {
    let folder = tempfile::tempdir().expect("a folder");
    let Some(gpu) = gpu_in(folder.path()) else { return };
    let weights: Vec<u8> =
        (0..48 * 64).flat_map(|i| half::f16::from_f32((i % 13) as f32 * 0.1).to_le_bytes()).collect();
    let matrix = |gpu: &Gpu| Matrix::upload(gpu, Format::F16, 48, 64, &weights).expect("a matrix");
    let before = [1, 3, 8, 16].map(|batch| product(&gpu, &matrix(&gpu), batch));
    let file = gpu.tiles_file().expect("a folder").to_owned();
    assert!(!file.exists());

    let mut seen = Vec::new();
    let (first, second) = (matrix(&gpu), matrix(&gpu));
    let tuned = match gpu.tune(&[&first, &second], &mut |done, all| seen.push((done, all))) {
        Err(Error::MissingFeature { .. }) if !gpu.info().timestamps => return,
        tuned => tuned.expect("measured"),
    };
    assert_eq!(seen.last(), Some(&(tuned.len(), tuned.len())));
    let few: Vec<&Tuned> = tuned.iter().filter(|tuned| !tuned.is_gemm).collect();
    assert_eq!(few.iter().map(|tuned| tuned.shape.batch).collect::<Vec<_>>(), [1, 2, 4, 8]);
    for tuned in &tuned {
        assert!(tuned.fastest <= tuned.usual && tuned.fastest > 0.0, "{tuned:?}");
        assert!(tuned.tiles > 1 && (!tuned.is_changed || tuned.fastest < tuned.usual), "{tuned:?}");
    }
    gpu.save_tiles().expect("written");
    let text = std::fs::read_to_string(&file).expect("the file");
    assert_eq!(text.lines().count(), 1 + tuned.len(), "{text}");
    drop((first, second, gpu));

    // Tiles that are not those of the table, whatever was the fastest here.
    let other = |line: &str| {
        let mut words: Vec<&str> = line.split(' ').collect();
        if let ["product", _, _, _, _, rows, _, teams, _] = &mut words[..] {
            (*rows, *teams) = ("2", "2");
        }
        words.join(" ")
    };
    std::fs::write(&file, text.lines().map(other).collect::<Vec<_>>().join("\n")).expect("written");
    let gpu = gpu_in(folder.path()).expect("the adapter");
    assert!(gpu.take_cache_warnings().is_empty());
    assert_eq!([1, 3, 8, 16].map(|batch| product(&gpu, &matrix(&gpu), batch)), before);
    assert!(gpu.kernels().iter().any(|kernel| kernel.name().contains("r2")), "{:?}", gpu.kernels());
}

#[test]
fn files_of_tiles_that_cannot_be_used_are_ignored_with_the_reason() {
    let folder = tempfile::tempdir().expect("a folder");
    let Some(gpu) = gpu_in(folder.path()) else { return };
    let file = gpu.tiles_file().expect("a folder").to_owned();
    drop(gpu);
    let title = "ruvllm-gpu tiles, version 2\n";
    for (text, reason) in [
        ("another\n".to_owned(), "first line"),
        ("ruvllm-gpu tiles, version 1\nproduct F16 48 64 1 1 32 4 1".to_owned(), "first line"),
        (format!("{title}product"), "too few words"),
        (format!("{title}product F16 48 64 1 1 32 4"), "another form"),
        (format!("{title}product F17 48 64 1 1 32 4 1"), "unknown format"),
        (format!("{title}product F16 48 64 x 1 32 4 1"), "no number"),
        (format!("{title}product F16 48 63 1 1 32 4 1"), "cannot run"),
        (format!("{title}product F16 48 64 1 1 32 4096 1"), "cannot run"),
        (format!("{title}product F16 48 64 1 1 256 1 1"), "order of sums"),
    ] {
        std::fs::write(&file, &text).expect("written");
        let gpu = gpu_in(folder.path()).expect("the adapter");
        let warnings: Vec<String> = gpu.take_cache_warnings().iter().map(ToString::to_string).collect();
        assert!(warnings.iter().any(|warning| warning.contains(reason)), "{text}: {warnings:?}");
    }
}
