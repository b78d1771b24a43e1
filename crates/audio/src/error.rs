use crate::container;

/// Reason why audio is unreadable.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// No container or codec that is known here.
    #[error("{0}")]
    Unsupported(String),

    /// The container or a packet breaks its format.
    #[error("the recording is damaged: {0}")]
    Damaged(String),

    /// The file cannot be read.
    #[error("cannot read the recording: {0}")]
    Io(#[from] std::io::Error),

    /// There is not a single sample.
    #[error("the recording has no sound in it")]
    Empty,

    /// A rate outside of [`RATES`](crate::RATES).
    #[error("the recording has {0} samples a second, expected {low} to {high}", low = crate::RATES.start(), high = crate::RATES.end())]
    Rate(u32),

    /// More than [`MAX_CHANNELS`](crate::MAX_CHANNELS), or none.
    #[error("the recording has {0} channels, expected 1 to {max}", max = crate::MAX_CHANNELS)]
    Channels(usize),

    /// A channel that the recording does not have.
    #[error("there is no channel {channel}: the recording has {channels}, counted from 0")]
    NoChannel { channel: usize, channels: usize },

    /// The rate or the number of channels changes on the way.
    #[error("the recording changes from {before} to {after} at {seconds:.2} s")]
    Changed { before: String, after: String, seconds: f64 },

    /// A sample of floats is NaN or infinite.
    #[error("the recording has a sample at {seconds:.2} s that is no number")]
    NotFinite { seconds: f64 },

    /// A sample of floats is larger than any number that samples are made of.
    #[error(
        "the recording has a sample of {value:e} at {seconds:.2} s, where full scale is 1: it is damaged, or in another form than it says"
    )]
    TooLoud { value: f32, seconds: f64 },
}

/// Translates the decoding library's errors.
impl From<symphonia::core::errors::Error> for Error {
    fn from(error: symphonia::core::errors::Error) -> Error {
        use symphonia::core::errors::Error as Source;
        match error {
            Source::IoError(error) if error.kind() == std::io::ErrorKind::UnexpectedEof => {
                Error::Damaged("it ends too early".into())
            }
            Source::IoError(error) => Error::Io(error),
            Source::Unsupported(what) => container::unsupported(what.to_owned()),
            other => Error::Damaged(other.to_string()),
        }
    }
}
