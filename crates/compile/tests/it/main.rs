//! Compiles the archives in `fixtures` and runs the compiled programs. `fixtures/make.py` made the
//! archives with PyTorch.

mod fallback;
mod numbers;
mod report;
mod sharing;
mod statistics;
mod support;
mod views;
