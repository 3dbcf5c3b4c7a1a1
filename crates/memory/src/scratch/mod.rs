//! Memory for the length of a step, taken from the pool once and used again by each step.
//!
//! | what | for |
//! |---|---|
//! | [`Arena`] | many slices of any size that all end together |
//! | [`BufferPool`] | buffers of five sizes that come and go one by one |
//! | [`ThreadScratch`] | an arena for each thread |

mod arena;
mod buffers;
mod element;
mod thread;

pub use arena::{Arena, Frame};
pub use buffers::{BUFFER_CLASSES, BufferPool};
pub use element::Element;
pub use thread::ThreadScratch;
