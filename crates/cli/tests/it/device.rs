//! `--device` in a program without the feature `gpu`. With it: the test binary `gpu`.

use crate::program::run;

#[test]
fn unknown_devices_are_usage_errors() {
    for device in ["cuda", "gpu:", "gpu:x", ""] {
        run(&["generate", "--device", device, "x"]).fails_with(2, &["--device", "gpu:N"]);
    }
    run(&["doctor", "--self-test"]).fails_with(2, &["--gpu"]);
    run(&["doctor", "--gpu", "--shapes", "3"]).fails_with(2, &["--self-test"]);
}

#[test]
fn commands_of_the_cpu_refuse_others() {
    run(&["embed", "x", "--device", "gpu"]).fails_with(2, &["`ruvllm embed`", "CPU only", "--device gpu"]);
}

#[cfg(not(feature = "gpu"))]
#[test]
fn a_program_without_gpu_support_says_how_to_build_it() {
    let short = ["generate", "--temperature", "0", "-n", "2", "Once"];
    for arguments in [
        &[&short[..], &["--device", "gpu"]].concat()[..],
        &["bench", "--device", "gpu:1"],
        &["chat", "--device", "gpu"],
        &["serve", "--check", "--device", "gpu"],
        &["doctor", "--gpu"],
    ] {
        run(arguments).fails_with(1, &["built without GPU support", "--features gpu", "--device cpu"]);
    }
    let cpu = run(&short);
    let auto = run(&[&short[..], &["--device", "auto"]].concat());
    let (text, notes) = auto.text_and_notes();
    assert_eq!(text, cpu.text());
    assert!(notes.contains("the CPU computes: this program is built without GPU support"), "{notes}");
    let served = run(&["serve", "--check", "--device", "auto"]);
    let notes = served.text_and_notes().1.to_owned();
    assert!(notes.contains("the CPU computes"), "{notes}");
    let words: Vec<String> = run(&["doctor"]).text().split_whitespace().map(str::to_owned).collect();
    assert!(words.join(" ").contains("--features gpu"));
}
