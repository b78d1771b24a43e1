//! Request settings.

use crate::count::positive;

#[derive(Clone, Debug, clap::Args)]
pub(crate) struct RequestArgs {
    /// Drop hosted tools, such as web search, from requests instead of rejecting them
    #[arg(help_heading = "Server", long)]
    pub(crate) drop_hosted_tools: bool,

    /// Memory for stored responses, which requests continue by `previous_response_id`, in MiB; 0
    /// stores none
    #[arg(help_heading = "Server", long, value_name = "N", default_value_t = 64)]
    pub(crate) response_memory: usize,

    /// Maximum requests per minute per key
    #[arg(help_heading = "Server", long, value_name = "N", value_parser = positive)]
    pub(crate) requests_per_minute: Option<usize>,

    /// Maximum tokens per minute per key, prompts and answers together
    #[arg(help_heading = "Server", long, value_name = "N", value_parser = positive)]
    pub(crate) tokens_per_minute: Option<usize>,
}
