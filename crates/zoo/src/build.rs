//! Builds a program from a checkpoint and options.

use indexmap::IndexMap;

use crate::{
    Checkpoint, Model, Options, Result,
    architecture::Architecture,
    block, encoder,
    model::{adapter_facts, metadata},
    options::settings,
    speech::{moonshine, parakeet, voxtral, voxtral_realtime, whisper},
};

/// Builds the forward pass of a checkpoint. No weight is read. The program's weights are slices of
/// the checkpoint, or compute their bytes on demand.
///
/// # Errors
/// [`Option`](crate::Error::Option) for an option out of range.
/// [`MissingTensor`](crate::Error::MissingTensor) and [`Tensor`](crate::Error::Tensor) for a
/// checkpoint that does not match its config.
pub fn build(checkpoint: &Checkpoint, options: &Options) -> Result<Model> {
    model(checkpoint, options).map_err(|error| checkpoint.named_as_stored(error))
}

fn model(checkpoint: &Checkpoint, options: &Options) -> Result<Model> {
    let config = match checkpoint.architecture() {
        Architecture::Decoder(config) => config,
        Architecture::Encoder(config) => return encoder::model(checkpoint, config, options),
        Architecture::Moonshine(config) => return moonshine::model(checkpoint, config, options),
        Architecture::Parakeet(config) => return parakeet::model(checkpoint, config, options),
        Architecture::Whisper(config) => return whisper::model(checkpoint, config, options),
        Architecture::Voxtral(config) => return voxtral::model(checkpoint, config, options),
        Architecture::VoxtralRealtime(config) => return voxtral_realtime::model(checkpoint, config, options),
    };
    let settings = settings(checkpoint, config, options)?;
    let (program, floats) = block::program(checkpoint, config, settings)?;
    let (methods, tokenizer) = (IndexMap::from([("forward", program)]), checkpoint.tokenizer().clone());
    let mut metadata = metadata(config, settings);
    metadata.extend(adapter_facts(checkpoint.adapters()));
    Ok(Model { methods, floats, metadata, tokenizer })
}
