//! Entry point of the tools; everything is in the library.

#![forbid(unsafe_code)]

fn main() -> std::process::ExitCode {
    xtask::exit_code(ruvllm_tools::run())
}
