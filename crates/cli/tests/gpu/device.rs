//! Selection of the device, and flags that a GPU rejects.

use crate::program::{data, run};
use crate::{adapters, gpu, report, run_without_driver};

const SHORT: [&str; 6] = ["generate", "--temperature", "0", "-n", "2", "Once"];

fn on(device: &str) -> Vec<&str> {
    [&SHORT[..], &["--device", device]].concat()
}

#[test]
fn a_machine_without_a_gpu_says_so_and_auto_takes_the_cpu() {
    for device in ["gpu", "gpu:0"] {
        run_without_driver(&on(device)).fails_with(1, &["no GPU found", "driver", "--device cpu"]);
    }
    run_without_driver(&["bench", "--device", "gpu"]).fails_with(1, &["no GPU found"]);
    let auto = run_without_driver(&on("auto"));
    let (text, notes) = auto.text_and_notes();
    assert_eq!(text, run(&SHORT).text());
    assert!(notes.contains("the CPU computes: no GPU found"), "{notes}");
}

#[test]
fn adapters_are_chosen_by_number_and_software_only_so() {
    let Some(gpu) = gpu() else { return };
    let report = report();
    let absent = adapters(&report).len();
    run(&on(&format!("gpu:{absent}")))
        .fails_with(1, &[&format!("there is no adapter gpu:{absent}"), &gpu, "doctor --gpu"]);
    if adapters(&report).iter().all(|adapter| adapter["kind"] == "software") {
        run(&on("gpu")).fails_with(1, &["no GPU found", &gpu, "software"]);
        let auto = run(&on("auto"));
        assert!(auto.text_and_notes().1.contains("the CPU computes"), "{auto:?}");
    }
}

#[test]
fn flags_of_the_cpu_are_refused() {
    let Some(gpu) = gpu() else { return };
    for flags in [
        &["--kv", "q4"][..],
        &["--kv-budget", "64MiB"],
        &["--prefix-cache", "on"],
        &["--pressure", "reject"],
        &["--quantize", "Q8_0"],
        &["--no-mmap"],
        &["--mlock"],
    ] {
        let arguments = [&on(&gpu)[..], flags].concat();
        run(&arguments).fails_with(2, &[flags[0], "no effect on a GPU", "--device cpu"]);
    }
    let text = data("validation-prefix.txt");
    let text = text.to_str().unwrap();
    run(&["embed", "x", "--device", &gpu]).fails_with(2, &["`ruvllm embed`", "CPU only"]);
    run(&["eval", "passkey", "--file", text, "--device", &gpu]).fails_with(2, &["CPU only"]);
    let long = [&on(&gpu)[..], &["--context", "5000"]].concat();
    run(&long).fails_with(1, &["5000", "4096"]);
}
