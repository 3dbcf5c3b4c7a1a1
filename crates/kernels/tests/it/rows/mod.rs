//! Operations on rows of f32.

mod activation;
mod backward;
mod gram;
mod hadamard;
mod norm;
mod product;
mod select;
mod selected;
mod softmax;
