//! Compiles the archives in `fixtures`, which `fixtures/make.py` made with PyTorch, and runs what comes out.

mod fallback;
mod numbers;
mod report;
mod sharing;
mod support;
mod views;
