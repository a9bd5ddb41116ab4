// The official browser server, with the system's Chromium, if there is one.

import { existsSync } from 'node:fs';
import { join } from 'node:path';

import { root } from './launch.mjs';

const chromium = ['/usr/bin/chromium', '/usr/bin/chromium-browser', '/usr/bin/google-chrome'].find(existsSync);

/** Why tests with browsers are skipped, or false. */
export const skip = chromium ? false : 'no Chromium is installed';

/** An entry of mcpServers for it, whose instances are as the argument says. */
export function browser(instances) {
  return {
    command: process.execPath,
    args: [
      join(root, 'node_modules/@playwright/mcp/cli.js'),
      '--headless',
      '--no-sandbox',
      '--executable-path',
      chromium,
      '--user-data-dir',
      '${INSTANCE_DIR}/profile',
      '--output-dir',
      '${INSTANCE_DIR}/out',
    ],
    sharing: 'exclusive',
    instances,
    cleanup: { tool: 'browser_close' },
  };
}
