export { lost, openTestFencepost, type TestFencepost, type TestFencepostOptions } from './test-fencepost.ts'
export type { DroppableReply, ReplyDrop } from './reply-drop.ts'
export type { RivalLease } from './rival.ts'
export { TestKitError, type TestKitErrorCode } from './test-kit-error.ts'
