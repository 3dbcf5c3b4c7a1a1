//! The pipeline cache on disk: equal results with any file, and writers beside each other.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use ruvllm_gpu::{CacheError, Error, Format, Gpu, Matrix, Quantized, Selection, self_test};

use crate::gpu;

/// Environment variable with the cache folder of a process that runs [`write_repeatedly`].
const FOLDER: &str = "RUVLLM_GPU_TEST_CACHE";

fn open(folder: &Path) -> Gpu {
    Gpu::open_cached(&Selection::with_software(), 256 << 20, Some(folder)).unwrap()
}

/// Bits of products of all formats.
fn results(gpu: &Gpu) -> Vec<Vec<u32>> {
    let (rows, cols) = (33, 512);
    let product = |format: Format| {
        let weights = self_test::random_weights(format, (rows * cols) as usize, 9);
        let matrix = Matrix::upload(gpu, format, rows, cols, &weights).unwrap();
        let values: Vec<f32> = (0..cols).map(|i| (i as f32 * 0.37).sin()).collect();
        let buffer = gpu.upload(&values).unwrap();
        let (y, x) = (gpu.zeroed(u64::from(rows) * 4).unwrap(), Quantized::new(gpu, 1, cols).unwrap());
        let quantize = gpu.quantize(&buffer, &x).unwrap();
        let x = if format.takes_quantized() { x.into() } else { buffer.into() };
        gpu.run(&[&quantize, &matrix.product(gpu, &x, &y, 1).unwrap()]).unwrap();
        gpu.download(&y).unwrap()
    };
    Format::ALL.into_iter().map(product).collect()
}

/// Path of the cache of the adapter in use, or `None` if it has none.
fn file(gpu: &Gpu, folder: &Path) -> Option<PathBuf> {
    let file = gpu.info().cache_file(folder);
    if file.is_none() {
        println!("{} has no pipeline cache", gpu.info());
    }
    file
}

#[test]
fn results_are_the_same_with_every_file() {
    let Some(plain) = gpu() else { return };
    let (expected, folder) = (results(&plain), tempfile::tempdir().unwrap());
    assert!(plain.cache_file().is_none());
    let Some(path) = file(&plain, folder.path()) else { return };

    let cold = open(folder.path());
    assert_eq!(cold.cache_file().unwrap().loaded_bytes, 0);
    assert_eq!(results(&cold), expected);
    cold.finish_kernels();
    assert!(cold.take_cache_warnings().is_empty());
    let times = cold.compile_times();
    assert_eq!(times.kernels, cold.compiled());
    assert!(times.pipeline > times.source, "{times:?}");
    drop(cold);
    let written = fs::read(&path).unwrap();
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);

    let warm = open(folder.path());
    assert_eq!(warm.cache_file().unwrap().loaded_bytes, written.len() as u64 - 84);
    assert_eq!(results(&warm), expected);
    drop(warm);

    // Cut, changed inside the driver's data, of another driver, empty, of another program, longer.
    let change = |position: usize| {
        let mut bytes = written.clone();
        bytes[position] ^= 0x40;
        bytes
    };
    for damaged in [
        written[..written.len() - 1].to_vec(),
        change(written.len() - 1),
        change(20),
        Vec::new(),
        b"WGPUPLCH".repeat(40),
        [&written[..], &[0]].concat(),
    ] {
        fs::write(&path, &damaged).unwrap();
        let gpu = open(folder.path());
        assert_eq!(gpu.cache_file().unwrap().loaded_bytes, 0);
        assert!(matches!(gpu.take_cache_warnings()[..], [CacheError::Damaged { .. }]));
        assert_eq!(results(&gpu), expected);
        drop(gpu);
        // Rewritten.
        assert!(open(folder.path()).cache_file().unwrap().loaded_bytes > 0);
    }
    let oversized = fs::File::create(&path).unwrap();
    oversized.set_len(100 << 20).unwrap();
    let gpu = open(folder.path());
    assert!(matches!(gpu.take_cache_warnings()[..], [CacheError::Oversized { .. }]));
    assert_eq!(results(&gpu), expected);
    drop(gpu);
    assert!(fs::metadata(&path).unwrap().len() < 100 << 20);
}

#[test]
fn a_folder_that_cannot_be_used_is_a_warning() {
    let Some(plain) = gpu() else { return };
    let folder = tempfile::tempdir().unwrap();
    let blocked = folder.path().join("file");
    fs::write(&blocked, "x").unwrap();
    let Some(path) = file(&plain, folder.path()) else {
        // Without the feature everything works without a file.
        let gpu = open(folder.path());
        assert!(gpu.cache_file().is_none() && gpu.take_cache_warnings().is_empty());
        assert_eq!(results(&gpu), results(&plain));
        return;
    };
    let gpu = open(&blocked);
    assert!(gpu.cache_file().is_none());
    assert!(matches!(gpu.take_cache_warnings()[..], [CacheError::Io { .. }]));
    assert!(gpu.take_cache_warnings().is_empty());
    assert_eq!(results(&gpu), results(&plain));
    drop(gpu);

    // A folder in the place of the file: nothing is read, and the write fails once.
    fs::create_dir(&path).unwrap();
    let gpu = open(folder.path());
    assert!(matches!(gpu.take_cache_warnings()[..], [CacheError::NotAFile { .. }]));
    results(&gpu);
    gpu.finish_kernels();
    gpu.finish_kernels();
    assert_eq!(gpu.take_cache_warnings().len(), 1);
}

#[test]
fn a_device_that_is_lost_or_dropped_while_it_compiles_ends_its_threads() {
    let Some(plain) = gpu() else { return };
    drop(plain);
    let folder = tempfile::tempdir().unwrap();
    for lose in [false, true] {
        let gpu = open(folder.path());
        let weights = vec![0; 34 * 64];
        let matrix = Matrix::upload(&gpu, Format::Q8_0, 64, 32, &weights).unwrap();
        let (x, y) = (Quantized::new(&gpu, 8, 32).unwrap(), gpu.zeroed(64 * 4 * 8).unwrap());
        let launches: Vec<_> = (1..=8)
            .map(|batch| {
                let (x, y) =
                    (Quantized::new(&gpu, batch, 32).unwrap(), gpu.zeroed(u64::from(batch) * 256).unwrap());
                matrix.product(&gpu, &x.into(), &y, batch).unwrap()
            })
            .collect();
        drop((x, y));
        if lose {
            gpu.destroy();
            let error = gpu.run(&[&launches[7]]).unwrap_err();
            assert!(matches!(error, Error::DeviceLost { .. }), "{error}");
        }
    }
}

/// Work of a process that [`two_processes_write_at_the_same_time`] starts.
fn write_repeatedly(folder: &Path) {
    let expected = results(&gpu().unwrap());
    for _ in 0..3 {
        let gpu = open(folder);
        assert!(gpu.take_cache_warnings().is_empty());
        assert_eq!(results(&gpu), expected);
        gpu.finish_kernels();
        assert!(gpu.take_cache_warnings().is_empty());
        // The other process replaces it meanwhile, never by parts of a file.
        if let Some(file) = gpu.cache_file() {
            fs::remove_file(&file.path).unwrap_or_default();
        }
    }
}

#[test]
fn two_processes_write_at_the_same_time() {
    if let Some(folder) = std::env::var_os(FOLDER) {
        return write_repeatedly(Path::new(&folder));
    }
    let Some(gpu) = gpu() else { return };
    let folder = tempfile::tempdir().unwrap();
    let start = || {
        Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "cache::two_processes_write_at_the_same_time", "--nocapture"])
            .env(FOLDER, folder.path())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap()
    };
    let processes = [start(), start()];
    for process in processes {
        let output = process.wait_with_output().unwrap();
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        assert!(output.status.success() && text.contains("1 passed"), "{text}");
    }
    let temporary = |entry: fs::DirEntry| entry.path().extension().is_some_and(|end| end == "tmp");
    assert!(fs::read_dir(folder.path()).unwrap().all(|entry| !temporary(entry.unwrap())));
    let last = open(folder.path());
    assert_eq!(results(&last), results(&gpu));
    assert!(last.take_cache_warnings().is_empty());
}
