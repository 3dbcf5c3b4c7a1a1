//! Layers with a state.

mod convolution;
mod delta_rule;
mod selective_scan;
