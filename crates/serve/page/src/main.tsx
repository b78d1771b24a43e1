// The chat page: conversations with the models of this server. Chats stay in this browser.
import { render } from "preact";
import { App } from "./app";
import { begin } from "./state";

void begin();
render(<App />, document.getElementById("app")!);
