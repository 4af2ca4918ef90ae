// Where the numbers come from: the server, or data embedded in the page. Both answer the same questions.
import {EmbeddedSource} from "./source_embedded.js";
import {ServerSource} from "./source_server.js";

export function openSource() {
  const embedded = document.getElementById("attend-data");
  return embedded ? new EmbeddedSource(JSON.parse(embedded.textContent)) : new ServerSource("/explore/v1");
}
