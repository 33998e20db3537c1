//! What `just dist` makes.

mod image;
mod release;
