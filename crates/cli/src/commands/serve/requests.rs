//! Settings of requests.

use crate::count::positive;

#[derive(Clone, Debug, clap::Args)]
pub(crate) struct RequestArgs {
    /// Leave out tools that run on a provider's servers, such as a search of the web, instead of
    /// refusing requests that list them
    #[arg(help_heading = "Server", long)]
    pub(crate) drop_hosted_tools: bool,

    /// Memory for responses that later requests continue by `previous_response_id`, in MiB; 0 keeps
    /// none
    #[arg(help_heading = "Server", long, value_name = "N", default_value_t = 64)]
    pub(crate) response_memory: usize,

    /// Most requests a minute of each key
    #[arg(help_heading = "Server", long, value_name = "N", value_parser = positive)]
    pub(crate) requests_per_minute: Option<usize>,

    /// Most tokens a minute of each key, in prompts and answers together
    #[arg(help_heading = "Server", long, value_name = "N", value_parser = positive)]
    pub(crate) tokens_per_minute: Option<usize>,
}
