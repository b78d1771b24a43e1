//! `/v1/realtime`: live transcription over a WebSocket, with the events of OpenAI's transcription
//! sessions. Clients of the older beta protocol get its names.

mod session;
mod sound;
mod turns;

use std::{collections::VecDeque, sync::Arc};

use axum::{
    Extension,
    extract::{
        Query, State,
        ws::{CloseFrame, Message, WebSocket, WebSocketUpgrade, rejection::WebSocketUpgradeRejection},
    },
    http::HeaderMap,
    response::Response,
};
use base64::{Engine, engine::general_purpose::STANDARD};
use serde::Deserialize;
use serde_json::{Value as Json, json};
use tokio::sync::{OwnedSemaphorePermit, mpsc};

use self::{
    session::Session,
    sound::{Sound, pipe},
    turns::{Change, TurnSplitter},
};
use crate::{
    app::App,
    error::{ApiError, Result},
    http::listener,
    ids::unique_id,
    json::Fields,
    openapi::Routes,
    speech::{Source, SpeechUpdate},
};

/// Maximum size of a client message: OpenAI's limit of 15 MiB of audio, as base64.
const MAX_MESSAGE: usize = 21 << 20;

/// Maximum unprocessed audio of a turn, in bytes of 16-bit samples.
const MAX_UNHEARD: usize = 32 << 20;

/// Sub-protocol that browsers send with their key.
const PROTOCOL: &str = "realtime";

/// Header of clients that speak the beta protocol.
const BETA: (&str, &str) = ("openai-beta", "realtime=v1");

/// WebSocket's code for a server that stops (RFC 6455 §7.4.1).
const GOING_AWAY: u16 = 1001;

/// Adds the path.
pub(crate) fn add(routes: Routes) -> Routes {
    routes.get("/v1/realtime", "Transcribes sound while it comes, over a WebSocket", connect)
}

#[derive(Debug, Default, Deserialize)]
struct SessionQuery {
    model: Option<String>,
    intent: Option<String>,
}

/// `GET /v1/realtime`: opens a session.
async fn connect(
    State(app): State<Arc<App>>,
    Query(query): Query<SessionQuery>,
    guard: Option<Extension<listener::ConnectionGuard>>,
    headers: HeaderMap,
    upgrade: Result<WebSocketUpgrade, WebSocketUpgradeRejection>,
) -> Result<Response> {
    let upgrade = upgrade.map_err(|error| ApiError::invalid(format!("the path takes WebSockets: {}", error.body_text())))?;
    if let Some(intent) = query.intent.filter(|intent| intent != "transcription") {
        return Err(ApiError::unsupported("intent", format!("sessions transcribe, and `intent` cannot be {intent:?}")));
    }
    let place = Arc::new(app.recording_permit()?);
    // A wrong model name is an error of the connection, before the session starts.
    let model = match &query.model {
        Some(name) => Some(app.models.find_speech(Some(name)).await.map(|_| name.clone())?),
        None => None,
    };
    let is_beta = headers.get(BETA.0).is_some_and(|value| value == BETA.1);
    let upgrade = upgrade.max_message_size(MAX_MESSAGE).max_frame_size(MAX_MESSAGE).protocols([PROTOCOL]);
    Ok(upgrade.on_upgrade(async move |socket| {
        let session = Session::new(model, is_beta);
        let connection = Connection { app, socket, place, session, turns: None, heard: VecDeque::new(), last_item: None };
        // An error here means that the client is gone.
        let _ = connection.run(guard.map(|Extension(guard)| guard)).await;
    }))
}

/// The client disconnected.
#[derive(Debug)]
struct Disconnected;

impl From<axum::Error> for Disconnected {
    fn from(_: axum::Error) -> Disconnected {
        Disconnected
    }
}

/// A turn in transcription.
struct Item {
    id: String,
    updates: mpsc::Receiver<SpeechUpdate>,
    text: String,
}

/// A session on a WebSocket.
struct Connection {
    app: Arc<App>,
    socket: WebSocket,
    /// Permit among concurrent recordings.
    place: Arc<OwnedSemaphorePermit>,
    session: Session,
    /// Audio since the last turn, and the current turn.
    turns: Option<TurnSplitter<OpenTurn>>,
    /// Unfinished turns, oldest first. Events are sent for the oldest one.
    heard: VecDeque<Item>,
    /// ID of the last committed turn.
    last_item: Option<String>,
}

/// The turn that receives audio.
struct OpenTurn {
    id: String,
    sound: Sound,
}

impl Connection {
    /// Handles events until the client disconnects or the server stops. At a stop, committed turns
    /// are still transcribed.
    async fn run(mut self, mut guard: Option<listener::ConnectionGuard>) -> Result<(), Disconnected> {
        self.send_session("created").await?;
        let mut stop = self.app.stop.clone();
        let stopped = async move { stop.wait_for(|stop| *stop).await.is_ok() };
        // The server waits until the guard is dropped, at the end of this function.
        let closing = async {
            match &mut guard {
                Some(guard) => guard.is_closing().await,
                None => std::future::pending().await,
            }
        };
        tokio::pin!(stopped, closing);
        let mut is_closing = false;
        loop {
            if is_closing && self.has_sent_all() {
                return self.close().await;
            }
            let update = async {
                match self.heard.front_mut() {
                    Some(item) => item.updates.recv().await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                _ = &mut stopped => {
                    let error = ApiError::unavailable("shutting_down", "the server is stopping");
                    self.fail(&error, None).await?;
                    return self.close().await;
                }
                () = &mut closing, if !is_closing => is_closing = true,
                message = self.socket.recv() => match message {
                    Some(Ok(Message::Text(text))) => self.take(text.as_bytes()).await?,
                    Some(Ok(Message::Ping(_) | Message::Pong(_))) => {}
                    Some(Ok(Message::Binary(_))) => self.fail(&ApiError::invalid("events are texts of JSON"), None).await?,
                    Some(Ok(Message::Close(_)) | Err(_)) | None => return Err(Disconnected),
                },
                update = update => self.send_update(update).await?,
            }
        }
    }

    /// Whether all committed turns were sent to the client.
    fn has_sent_all(&self) -> bool {
        let open = usize::from(self.turns.as_ref().is_some_and(TurnSplitter::is_open));
        self.heard.len() <= open
    }

    /// Ends the session because the server stops.
    async fn close(mut self) -> Result<(), Disconnected> {
        let frame = CloseFrame { code: GOING_AWAY, reason: "the server is stopping".into() };
        Ok(self.socket.send(Message::Close(Some(frame))).await?)
    }

    async fn send(&mut self, kind: &str, mut event: Json) -> Result<(), Disconnected> {
        event["type"] = kind.into();
        event["event_id"] = unique_id("event_").into();
        Ok(self.socket.send(Message::text(event.to_string())).await?)
    }

    /// Sends the session's settings.
    async fn send_session(&mut self, change: &str) -> Result<(), Disconnected> {
        let kind = if self.session.is_beta { "transcription_session" } else { "session" };
        self.send(&format!("{kind}.{change}"), json!({ "session": self.session.to_json() })).await
    }

    /// Sends an error event.
    async fn fail(&mut self, error: &ApiError, event_id: Option<String>) -> Result<(), Disconnected> {
        let mut event = error.to_json();
        event["error"]["event_id"] = event_id.into();
        self.send("error", event).await
    }

    /// Handles a client event.
    async fn take(&mut self, text: &[u8]) -> Result<(), Disconnected> {
        let mut event_id = None;
        match self.event(text, &mut event_id).await? {
            Ok(()) => Ok(()),
            Err(error) => self.fail(&error, event_id).await,
        }
    }

    async fn event(&mut self, text: &[u8], event_id: &mut Option<String>) -> Result<Result<()>, Disconnected> {
        let read = |event_id: &mut Option<String>| {
            let mut fields = Fields::parse(text)?;
            *event_id = fields.text("event_id")?;
            let kind = fields.text("type")?.ok_or_else(|| ApiError::value("type", "`type` is missing"))?;
            Ok((kind, fields))
        };
        let (kind, mut fields) = match read(event_id) {
            Ok(read) => read,
            Err(error) => return Ok(Err(error)),
        };
        match kind.as_str() {
            "session.update" | "transcription_session.update" => {
                if let Err(error) = self.update(&mut fields, kind != "session.update").await {
                    return Ok(Err(error));
                }
                self.send_session("updated").await?;
            }
            "input_audio_buffer.append" => match sound_of(&mut fields, &self.session) {
                Ok(sound) => return self.hear(&sound).await,
                Err(error) => return Ok(Err(error)),
            },
            "input_audio_buffer.commit" => match self.turns.as_mut().and_then(TurnSplitter::end) {
                Some((open, rest)) => {
                    // If the last audio exceeds the limit, the turn ends before it.
                    open.sound.send(rest, MAX_UNHEARD);
                    self.commit(open).await?;
                }
                None => {
                    let code = "input_audio_buffer_commit_empty";
                    return Ok(Err(ApiError::coded("audio", code, "there is no sound to commit")));
                }
            },
            "input_audio_buffer.clear" => {
                if let Some(open) = self.turns.take().and_then(|mut turns| turns.end()) {
                    self.heard.retain(|item| item.id != open.0.id);
                }
                self.send("input_audio_buffer.cleared", json!({})).await?;
            }
            other => {
                let message = format!("the event {other:?} is not one of a transcription session");
                return Ok(Err(ApiError::unsupported("type", message)));
            }
        }
        Ok(Ok(()))
    }

    /// Applies new settings in the form of either protocol. Turns in progress keep their settings.
    async fn update(&mut self, fields: &mut Fields, is_beta: bool) -> Result<()> {
        let update = fields.object("session")?.ok_or_else(|| ApiError::value("session", "`session` is missing"))?;
        let session = self.session.clone();
        let next = if is_beta { session.updated_in_beta(update)? } else { session.updated(update)? };
        if let Some(name) = next.model.as_deref().filter(|name| self.session.model.as_deref() != Some(name)) {
            self.app.models.find_speech(Some(name)).await?;
        }
        let has_new_sound = next.format != self.session.format || next.detection != self.session.detection;
        if has_new_sound && self.turns.as_ref().is_some_and(TurnSplitter::is_open) {
            let message = "the format and the turn detection cannot change within a turn: commit or clear it first";
            return Err(ApiError::value("session.audio.input", message));
        }
        if has_new_sound {
            self.turns = None;
        }
        self.session = next;
        Ok(())
    }

    /// Appends audio, and starts and ends turns as they are detected.
    async fn hear(&mut self, sound: &[u8]) -> Result<Result<()>, Disconnected> {
        let (rate, detection) = (self.session.format.rate(), self.session.detection);
        self.turns.get_or_insert_with(|| TurnSplitter::new(rate, detection)).push(sound);
        while let Some(change) = self.turns.as_mut().and_then(TurnSplitter::next) {
            match change {
                Change::Begins { at_ms } => {
                    let open = match self.open().await {
                        Ok(open) => open,
                        Err(error) => {
                            self.turns = None;
                            return Ok(Err(error));
                        }
                    };
                    if let Some(at_ms) = at_ms {
                        let event = json!({ "audio_start_ms": at_ms, "item_id": open.id });
                        self.send("input_audio_buffer.speech_started", event).await?;
                    }
                    if let Some(turns) = &mut self.turns {
                        turns.begin(open);
                    }
                }
                Change::Sound { open, bytes } => {
                    if !open.sound.send(bytes, MAX_UNHEARD) {
                        let message = "the model is too far behind: the turn has no room for more sound";
                        return Ok(Err(ApiError::busy(message)));
                    }
                }
                Change::Ends { open, at_ms } => {
                    let event = json!({ "audio_end_ms": at_ms, "item_id": open.id });
                    self.send("input_audio_buffer.speech_stopped", event).await?;
                    self.commit(open).await?;
                }
            }
        }
        Ok(Ok(()))
    }

    /// Starts a turn and its transcription.
    async fn open(&mut self) -> Result<OpenTurn> {
        let model = self.app.models.find_speech(self.session.model.as_deref()).await?;
        let (sound, source) = pipe(self.session.format.rate());
        let id = unique_id("item_");
        let updates = model.worker.submit(Source::Live(source), self.session.settings(), Arc::clone(&self.place))?;
        self.heard.push_back(Item { id: id.clone(), updates, text: String::new() });
        Ok(OpenTurn { id, sound })
    }

    /// Ends a turn's audio.
    async fn commit(&mut self, OpenTurn { id, sound }: OpenTurn) -> Result<(), Disconnected> {
        drop(sound);
        let previous = self.last_item.replace(id.clone());
        let event = json!({ "item_id": id, "previous_item_id": previous });
        self.send("input_audio_buffer.committed", event).await?;
        let content = json!([{ "type": "input_audio", "transcript": null }]);
        let item = json!({ "id": id, "object": "realtime.item", "type": "message", "status": "completed", "role": "user", "content": content });
        let kinds: &[&str] = match self.session.is_beta {
            true => &["conversation.item.created"],
            false => &["conversation.item.added", "conversation.item.done"],
        };
        for kind in kinds {
            self.send(kind, json!({ "previous_item_id": previous, "item": item })).await?;
        }
        Ok(())
    }

    /// Sends the new words of the oldest turn.
    async fn send_update(&mut self, update: Option<SpeechUpdate>) -> Result<(), Disconnected> {
        const PREFIX: &str = "conversation.item.input_audio_transcription";
        let Some(item) = self.heard.front_mut() else { return Ok(()) };
        let item_id = item.id.clone();
        let lost = || SpeechUpdate::Failed(ApiError::internal("the work on the turn ended without an answer"));
        match update.unwrap_or_else(lost) {
            SpeechUpdate::Begun | SpeechUpdate::Segments(_) => {}
            SpeechUpdate::Words(text) => {
                let text = if item.text.is_empty() { text.trim_start() } else { &text };
                if !text.is_empty() {
                    item.text.push_str(text);
                    let event = json!({ "item_id": item_id, "content_index": 0, "delta": text });
                    self.send(&format!("{PREFIX}.delta"), event).await?;
                }
            }
            SpeechUpdate::Finished { seconds, .. } => {
                let text = std::mem::take(&mut item.text);
                self.heard.pop_front();
                let usage = json!({ "type": "duration", "seconds": seconds });
                let event = json!({ "item_id": item_id, "content_index": 0, "transcript": text.trim_end(), "usage": usage });
                self.send(&format!("{PREFIX}.completed"), event).await?;
            }
            SpeechUpdate::Failed(error) => {
                self.heard.pop_front();
                let mut event = error.to_json();
                (event["item_id"], event["content_index"]) = (item_id.into(), 0.into());
                self.send(&format!("{PREFIX}.failed"), event).await?;
            }
        }
        Ok(())
    }
}

/// Decodes an event's audio to 16-bit samples.
fn sound_of(fields: &mut Fields, session: &Session) -> Result<Vec<u8>> {
    let text = fields.text("audio")?.ok_or_else(|| ApiError::value("audio", "`audio` is missing"))?;
    let bytes = STANDARD.decode(text.as_bytes()).map_err(|_| ApiError::value("audio", "`audio` is no base64"))?;
    session.format.decode(bytes).ok_or_else(|| ApiError::value("audio", "`audio` ends in the midst of a sample"))
}
